"""The functions of an evaluation's tasks: the positives, and then the negatives, of one pair of blocks.

Shapes: `B` rows of a block that a task reads, `D` dim, `P` positives of all queries of a block, `L` listed pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native
from dml_eval_rs.relation import Relation
from dml_eval_rs.shards.running import Work
from dml_eval_rs.shards.sources import Piece, name_bad_row, read, row_digests

Pairs = tuple[
    npt.NDArray[np.uint32], npt.NDArray[np.uint32]
]  # (L,) rows of two parts, ascending by the first


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an evaluation that its tasks need.

    Attributes:
        similarity, ties, metrics, threads: as in `evaluate`.
        symmetric: whether the queries are their own gallery, and a pair of rows is compared once for both.
    """

    similarity: str
    ties: str
    metrics: list[str]
    threads: int | None
    symmetric: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """Pairs of rows of two parts that are listed: as matches, and to leave out; None where nothing is."""

    relevant: Pairs | None = None
    ignored: Pairs | None = None

    def relate(self, relation: Relation, queries: int) -> Relation:
        """Add the pairs to a relation of so many queries."""
        if self.relevant is not None:
            offsets, items = _offsets(self.relevant, queries)
            relation = replace(relation, offsets=offsets, items=items)
        if self.ignored is not None:
            offsets, items = _offsets(self.ignored, queries)
            relation = replace(relation, left_out_offsets=offsets, left_out_items=items)
        return relation


@dataclass(frozen=True, slots=True)
class Positives:
    """Positives and counts of a block's queries, as in `PartialCounts`."""

    offsets: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.float64]
    indices: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a block, and what a task must know of them.

    Attributes:
        pieces: where the rows lie.
        places: (B,) their places in the side, ascending; or the first place, if they are consecutive.
        labels, groups: (B,) their codes.
        own: (B,) each query's own item, or -1.
        positives: those of the queries, once they are found.
    """

    pieces: tuple[Piece, ...]
    places: npt.NDArray[np.int64] | int
    labels: npt.NDArray[np.uint32] | None = None
    groups: npt.NDArray[np.uint32] | None = None
    own: npt.NDArray[np.int64] | None = None
    positives: Positives | None = None

    def __len__(self) -> int:
        return sum(map(len, self.pieces))


def find_positives(work: Work, queries: Part, gallery: Part | None, listed: Listed) -> list[Any]:
    """Find the positives of queries among items; without a gallery, among the queries.

    Returns:
        The digests of both parts' rows, the number of each query's positives, their keys and places in the gallery.
    """
    options: Options = work.options
    parts = [queries] if gallery is None else [queries, gallery]
    rows = [read(part.pieces) for part in parts]
    asked = parts[-1]
    relation = Relation(
        labels=queries.labels,
        gallery_labels=asked.labels,
        groups=queries.groups,
        gallery_groups=asked.groups,
        indices=None if queries.own is None else _find(queries.own, asked.places),
    )
    try:
        offsets, keys, indices = _native.find_positives(
            rows[0],
            rows[-1],
            listed.relate(relation, len(queries)),
            similarity=options.similarity,
            first_item=0,
            threads=options.threads,
        )
    except ValueError as error:
        raise _named(error, parts, rows, options) from None
    places = np.asarray(asked.places)[indices].astype(np.uint64)
    return [[row_digests(x) for x in rows], np.diff(offsets).astype(np.uint32), keys, places]


def count_negatives(work: Work, queries: Part, gallery: Part | None, listed: Listed) -> list[Any]:
    """Count the negatives of queries among items; without a gallery, among the queries.

    Where a pair serves both, those of the items among the queries, too.

    Returns:
        The digests of both parts' rows, and for each part whose rows are queries its new counts.
    """
    options: Options = work.options
    parts = [queries] if gallery is None else [queries, gallery]
    if options.symmetric:
        items = read([piece for part in parts for piece in part.pieces])
        digests = [row_digests(x) for x in np.split(items, [len(queries)])[: len(parts)]]
        found = _count_both_ways(parts, items, options)
    else:
        rows = [read(part.pieces) for part in parts]
        digests = [row_digests(x) for x in rows]
        found = [_count_one_way(parts, rows, options, listed)]
    return [digests, *found]


def _count_both_ways(
    parts: list[Part], items: npt.NDArray[Any], options: Options
) -> list[npt.NDArray[np.uint32]]:
    known = [part.positives for part in parts if part.positives is not None]
    before = np.concatenate([each.counts for each in known])
    starts = np.cumsum([0, *(len(each.keys) for each in known)]).astype(np.uint64)
    offsets = [each.offsets[:-1] + start for each, start in zip(known, starts)]
    first_items = [part.places for part in parts if not isinstance(part.places, np.ndarray)]
    split = len(parts[0]) if len(parts) > 1 else None
    if split is None:
        first_items.append(first_items[0] + len(items))
    try:
        counts = _native.count_symmetric_negatives(
            items,
            Relation(labels=np.concatenate([part.labels for part in parts if part.labels is not None])),
            similarity=options.similarity,
            ties=options.ties,
            metrics=options.metrics,
            blocks=(split, first_items),
            offsets=np.concatenate([*offsets, starts[-1:]]),
            keys=np.concatenate([each.keys for each in known]),
            indices=np.concatenate([each.indices for each in known]),
            counts=before,
            threads=options.threads,
        )
    except ValueError as error:
        raise _named(error, parts, np.split(items, [len(parts[0])])[: len(parts)], options) from None
    return np.split((counts - before).astype(np.uint32), [len(known[0].counts)])[: len(parts)]


def _count_one_way(
    parts: list[Part], rows: list[npt.NDArray[Any]], options: Options, listed: Listed
) -> npt.NDArray[np.uint32]:
    queries, items = parts[0], parts[-1]
    positives, first_item = queries.positives, items.places
    assert positives is not None
    assert not isinstance(first_item, np.ndarray)
    relation = Relation(labels=queries.labels, gallery_labels=items.labels, indices=queries.own)
    try:
        counts = _native.count_negatives(
            rows[0],
            rows[-1],
            listed.relate(relation, len(queries)),
            similarity=options.similarity,
            ties=options.ties,
            metrics=options.metrics,
            first_item=first_item,
            offsets=positives.offsets,
            keys=positives.keys,
            indices=positives.indices,
            counts=positives.counts,
            threads=options.threads,
        )
    except ValueError as error:
        raise _named(error, parts, rows, options) from None
    return (counts - positives.counts).astype(np.uint32)


def _find(wanted: npt.NDArray[np.int64], places: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """Return where the wanted places are among ascending ones, or -1."""
    places = np.asarray(places)
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    return np.where(places[at] == wanted, at, -1)


def _offsets(pairs: Pairs, queries: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Return the start of each query's items, and the end of the last's, and the items."""
    sizes = np.bincount(pairs[0], minlength=queries)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64), pairs[1]


def _named(
    error: ValueError, parts: Sequence[Part], rows: Sequence[npt.NDArray[Any]], options: Options
) -> ValueError:
    """Return the error, or one that names the shard of a row that no evaluation accepts."""
    for part, x in zip(parts, rows):
        bad = name_bad_row(part.pieces, x, options.similarity)
        if bad is not None:
            return ValueError(bad)
    return error
