"""The functions of an evaluation's tasks: the positives, and then the negatives, of one pair of blocks.

Shapes: `Q` queries of a part, `P` positives of these queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.shards.running import Work
from dml_eval_rs.shards.sides import Part, compute_on

# The attributes of a `Relation` that list pairs of rows of two parts.
Listed = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of an evaluation that its tasks need, as in `evaluate`.

    If `alone`, the queries search one another, and each excludes itself; if `symmetric`, a pair of rows is compared
    once for both.
    """

    similarity: str
    ties: str
    metrics: list[str]
    threads: int | None
    alone: bool
    symmetric: bool

    def of_core(self, positives: Positives) -> dict[str, Any]:
        """Return the core's options to count some positives."""
        counted = {"ties": self.ties, "metrics": self.metrics, "threads": self.threads}
        return {**counted, **positives._asdict()}


class Positives(NamedTuple):
    """Positives of some queries, and the negatives counted so far.

    Attributes:
        offsets: (Q + 1,) the start of each query's positives, and the end of the last query's.
        keys, indices: (P,) keys, descending for each query, and places in the gallery.
        counts: (P + Q,) negatives between the positives; (2P + Q,) with expected ties.
    """

    offsets: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.float64]
    indices: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]


def find_positives(work: Work, queries: Part, gallery: Part | None, listed: Listed) -> list[Any]:
    """Find the positives of queries among items; without a gallery, among the queries.

    Returns:
        The digests of both parts' rows, the number of each query's positives, their keys and places in the gallery.
    """
    options: TaskOptions = work.options
    parts = [queries] if gallery is None else [queries, gallery]
    items = parts[-1]
    relation = Relation(
        labels=queries.labels,
        gallery_labels=items.labels,
        groups=queries.groups,
        gallery_groups=items.groups,
        exclude=_find(queries.places if options.alone else queries.exclude, items.places),
        **listed,
    )

    def find(_: Any, rows: list[npt.NDArray[Any]]) -> list[Any]:
        offsets, keys, indices = _native.find_positives(
            rows[0],
            rows[-1],
            relation,
            similarity=options.similarity,
            threads=options.threads,
        )
        return [
            np.diff(offsets).astype(np.uint32),
            keys,
            np.asarray(items.places)[indices].astype(np.uint64),
        ]

    return compute_on(parts, options.similarity, find)


def count_negatives(
    work: Work,
    queries: Part,
    gallery: Part | None,
    of_queries: Positives,
    of_items: Positives | None,
    listed: Listed,
) -> list[Any]:
    """Count the negatives of queries among items; without a gallery, among the queries.

    With the items' positives, also count the negatives of the items among the queries.

    Returns:
        The digests of both parts' rows, and new counts of each part whose positives came.
    """
    options: TaskOptions = work.options
    parts = [queries] if gallery is None else [queries, gallery]
    first_items = [int(part.places) for part in parts]

    def one_way(_: Any, rows: list[npt.NDArray[Any]]) -> list[Any]:
        exclude = np.arange(queries.rows.start, queries.rows.stop) if options.alone else queries.exclude
        relation = Relation(labels=queries.labels, gallery_labels=parts[-1].labels, exclude=exclude, **listed)
        counts = _native.count_negatives(
            rows[0],
            rows[-1],
            relation,
            similarity=options.similarity,
            first_item=first_items[-1],
            **options.of_core(of_queries),
        )
        return [(counts - of_queries.counts).astype(np.uint32)]

    def both_ways(items: npt.NDArray[Any], _: Any) -> list[Any]:
        known = [of_queries] if of_items is None else [of_queries, of_items]
        starts = np.cumsum([0, *(len(each.keys) for each in known)]).astype(np.uint64)
        offsets = [*(each.offsets[:-1] + start for each, start in zip(known, starts)), starts[-1:]]
        positives = Positives(*map(np.concatenate, [offsets, *list(zip(*known))[1:]]))
        counts = _native.count_symmetric_negatives(
            items,
            Relation(labels=np.concatenate([part.labels for part in parts if part.labels is not None])),
            similarity=options.similarity,
            split=len(queries) if len(parts) > 1 else None,
            first_items=(first_items[0], first_items[1] if len(parts) > 1 else first_items[0] + len(queries)),
            **options.of_core(positives),
        )
        return np.split((counts - positives.counts).astype(np.uint32), [len(of_queries.counts)])[: len(known)]

    return compute_on(parts, options.similarity, both_ways if options.symmetric else one_way)


def _find(wanted: Any, places: Any) -> npt.NDArray[np.int64] | None:
    """Return where the wanted places are among ascending places, or -1."""
    if wanted is None:
        return None
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    return np.where(places[at] == wanted, at, -1)
