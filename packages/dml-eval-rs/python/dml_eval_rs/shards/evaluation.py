"""Retrieval metrics for embeddings in shards.

Shapes: `Q` queries, `C` classes, `P` positives.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.metrics.evaluation import Evaluation
from dml_eval_rs.retrieval import (
    LabelsLike,
    Matches,
    Options,
    check_options,
    check_retrieval_only,
    describe_no_match,
    to_evaluation,
)
from dml_eval_rs.shards.rows import Part, Source
from dml_eval_rs.shards.tasks import Call, Loaded, Map, Task, Tile, begin_call
from dml_eval_rs.verification.rates import to_order

_Asked = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int64]
]  # sorted places of queries, and of items


class Positives(NamedTuple):
    """Positives, with the negatives counted so far."""

    offsets: npt.NDArray[np.uint64]  # (Q + 1,) the start of the positives per query, then the end
    keys: npt.NDArray[np.float64]  # (P,) sorted in descending order per query
    indices: npt.NDArray[np.uint64]  # (P,) places in the gallery
    counts: npt.NDArray[
        np.uint64
    ]  # (P + Q,) negatives between positives; (3P + Q,) unless ties are "index"


def evaluate_shards(
    shards: Sequence[Source],
    labels: Matches,
    gallery: Sequence[Source] | None = None,
    gallery_labels: LabelsLike | None = None,
    *,
    map: Map = builtins.map,
    block: int | None = None,
    **options: Unpack[Options],
) -> Evaluation:
    """Measure embeddings in shards, using tasks on any kind of worker, and return the exact result
    of `evaluate`.

    The embeddings are the concatenated shards. Tasks read two blocks of rows and return a few
    numbers per query to be added up, so workers, order, retries and repeated tasks do not change
    any bits. The calling process stores the labels, and 24 bytes per pair of a query and a match,
    but never the embeddings.

    Args:
        shards: paths of files, to be mapped by workers, see `load_array`; functions that take no
            arguments and return an array (must be picklable; called per task, so they should map or
            cache); or arrays, to be sent with the tasks. All must be (n_i, D) with a common float
            dtype, or (n_i, W) uint8 codes if ``similarity="hamming"``; n_i can be 0.
        labels: the labels of all rows, in the order of the shards, see `evaluate`: an array,
            `Labels` or `Relevance`.
        gallery, gallery_labels: shards and labels of the gallery. By default, the queries are
            searched.
        map: should call a picklable function per task and return the results, in any order. Use the
            builtin, an executor's `map`, or `adapters.ray.ray_map()`; to write your version, see
            docs/guide/shards.md.
        block: maximum rows per block; a task uses two blocks. By default, a quarter of the rows,
            but 8,192 to 131,072.
        options: options of `evaluate`, except `peers`, with only retrieval metrics. `threads` is
            the number per task, by default 1, or None to use all cores of a worker's machine;
            `progress` will be called when a task ends.

    Raises:
        TypeError: as `evaluate`, or if the map does not return the function's results.
        ValueError: as `evaluate`, or if a shard can't be read by a worker, differs in width or
            dtype from other shards, or changes between tasks; if a result is lost; or if a worker
            uses a different version of this package.
    """
    if "peers" in options:
        raise TypeError(
            "evaluate_shards can't use peers, because map divides the work; to use a map over "
            "ranks, see docs/guide/shards.md in the repository"
        )
    options.setdefault("threads", 1)
    checked = check_options(**options)
    check_retrieval_only(checked)
    task_options: Any = {
        name: getattr(checked, name) for name in ("similarity", "metrics", "threads")
    }
    task_options["ties"] = checked.ties[0]
    given = shards, labels, gallery, gallery_labels
    call, rows = begin_call(*given, task_options, map, block, checked.progress, checked.exclude)
    positives = _count(call)
    if len(positives.keys) == 0 and not checked.zero_unmatched:
        raise ValueError(describe_no_match(len(call.queries)))
    of = call.relation
    graded = Relation(offsets=of.offsets, items=of.items, grades=of.grades)
    counted = {**task_options, **positives._asdict(), "zero_unmatched": checked.zero_unmatched}
    columns = _native.compute_metrics(graded, **counted)
    return to_evaluation(
        columns, checked, len(rows.queries), len(rows.items), None if gallery else of.kept
    )


def _count(call: Call) -> Positives:
    """Find the positives, count the negatives, then return both."""
    offsets, keys, indices = _find_all_positives(call)
    per_positive = 1 if call.options["ties"] == "index" else 3
    counts = np.zeros(per_positive * len(keys) + len(call.queries), np.uint64)

    def slots(block: Part) -> slice:
        """Return the slice of `counts` that belongs to a block's queries."""
        return slice(
            *(int(offsets[row]) * per_positive + row for row in (block.rows.start, block.rows.stop))
        )

    def known(block: Part) -> Positives:
        of = offsets[block.rows.start : block.rows.stop + 1]
        found = slice(int(of[0]), int(of[-1]))
        return Positives(of - of[0], keys[found], indices[found], counts[slots(block)].copy())

    waves = divide(call)
    call.total = sum(map(call.count_pairs, waves))
    for tiles in waves:
        before = [known(block) for block in call.queries.blocks]

        def entries(tile: Tile, before: list[Positives] = before) -> list[Any]:
            of_items = (
                call.symmetric and call.queries.blocks[tile[0]] is not call.gallery.blocks[tile[1]]
            )
            return [before[number] for number in tile[: 1 + of_items]]

        count = _count_both_ways if call.symmetric else _count_one_way
        for tile, new in call.run_tiles("count", count, entries, tiles):
            for side, number, counted in zip(call.sides, tile, new):
                counts[slots(side.blocks[number])] += counted
    return Positives(offsets, keys, indices, counts)


def divide(call: Call) -> tuple[list[Tile], list[Tile]]:
    """Return the pairs of blocks in two waves: first a single pair per block of queries, then the
    remaining pairs.

    The first wave's counts tell tasks in the second wave which positives can no longer change a
    metric.
    """
    columns = len(call.gallery.blocks)
    first = [(i, i % columns) for i in range(len(call.queries.blocks))]
    return first, [tile for tile in call.tiles() if tile[1] != tile[0] % columns]


def _find_all_positives(
    call: Call,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64], npt.NDArray[np.uint64]]:
    """Return the start of the positives per query, and the keys and indices, sorted by key and then
    by index.
    """
    found: list[list[Any]] = [[] for _ in call.queries.blocks]
    for (_, part, *_), (sizes, keys, indices) in call.run(_find_positives, positive_tasks(call)):
        ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        for block, parts in zip(call.queries.blocks, found):
            low, high = np.searchsorted(part.rows, (block.rows.start, block.rows.stop))
            if low < high:
                query = np.repeat(
                    (part.rows[low:high] - block.rows.start).astype(np.uint32), sizes[low:high]
                )
                of_block = slice(ends[low], ends[high])
                parts.append((query, keys[of_block], indices[of_block]))
    columns = []
    for block, parts in zip(call.queries.blocks, found):
        parts.append((np.zeros(0, np.uint32), np.zeros(0), np.zeros(0, np.uint64)))
        query_P, key_P, index_P = (np.concatenate(column) for column in zip(*parts))
        order = np.lexsort((index_P, ~to_order(key_P), query_P))
        of_query = np.bincount(query_P, minlength=len(block)).astype(np.uint64)
        columns.append((of_query, key_P[order], index_P[order]))
        parts.clear()
    of_queries, keys, indices = (np.concatenate(column) for column in zip(*columns))
    return np.concatenate([[0], np.cumsum(of_queries)]).astype(np.uint64), keys, indices


def positive_tasks(call: Call) -> Iterator[Task]:
    """Yield tasks for queries and items that can match, chosen by label, or from the lists of both
    blocks.
    """
    by_label = call.relation.offsets is None
    for number, (queries, items) in enumerate(
        _rows_by_label(call) if by_label else _rows_by_blocks(call)
    ):
        gallery = None if by_label and call.queries is call.gallery else call.gallery.take(items)
        yield (
            ("positives", number, 0),
            call.queries.take(queries),
            gallery,
            call.restrict(queries, items),
        )


def _rows_by_label(call: Call) -> Iterator[_Asked]:
    """Yield rows in batches of about a block, label by label, for labels that can match."""
    alone = call.queries is call.gallery
    sides = (
        [call.relation.labels] if alone else [call.relation.labels, call.relation.gallery_labels]
    )
    labels = [of for of in sides if of is not None]
    classes = 1 + max(int(of.max()) for of in labels)
    sizes = [np.bincount(of, minlength=classes) for of in labels]
    can_match_C = sizes[0] > 1 if alone else sizes[0] * sizes[1] > 0
    size_C = np.where(can_match_C, sum(sizes), 0)
    total = int(size_C.sum())
    tasks = -(-total // max(map(len, call.gallery.blocks)))
    task_C = np.minimum((np.cumsum(size_C) - 1) * tasks // max(total, 1), tasks - 1)
    task_C = np.where(can_match_C, task_C, tasks)
    by_task = []
    for of in labels:
        task = task_C[of]
        order = np.argsort(task, kind="stable")  # stable, so rows stay sorted within tasks
        by_task.append((order, np.searchsorted(task[order], np.arange(tasks + 1))))
    for number in range(tasks):
        rows = [order[ends[number] : ends[number + 1]] for order, ends in by_task]
        if len(rows[0]):
            yield rows[0], rows[-1]


def _rows_by_blocks(call: Call) -> Iterator[_Asked]:
    """Yield, per pair of blocks, the rows that are listed as matches."""
    for items, queries in product(call.gallery.blocks, call.queries.blocks):
        listed: Any = call.restrict(queries.rows, items.rows)
        if len(listed.items):
            matched = np.flatnonzero(np.diff(listed.offsets))
            yield (
                matched + queries.rows.start,
                np.unique(listed.items).astype(np.int64) + items.rows.start,
            )


def _find_positives(
    loaded: Loaded, relation: Relation
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64], npt.NDArray[np.uint64]]:
    """Return the number of positives per query, and the positives' keys and places in the
    gallery.
    """
    space = {"similarity": loaded.options["similarity"], "threads": loaded.options["threads"]}
    offsets, keys, indices = _native.find_positives(
        loaded.rows[0], loaded.rows[-1], relation, **space
    )
    return (
        np.diff(offsets).astype(np.uint32),
        keys,
        loaded.parts[-1].rows[indices].astype(np.uint64),
    )


def _count_one_way(
    loaded: Loaded, relation: Relation, known: Positives
) -> list[npt.NDArray[np.uint32]]:
    """Return new counts of negatives, comparing queries with items."""
    relation = replace(relation, groups=None, gallery_groups=None)  # groups never exclude negatives
    options = {"first_item": loaded.first[1], **loaded.options, **known._asdict()}
    counts = _native.count_negatives(loaded.rows[0], loaded.rows[-1], relation, **options)
    return [(counts - known.counts).astype(np.uint32)]


def _count_both_ways(
    loaded: Loaded, relation: Relation, *known: Positives
) -> list[npt.NDArray[np.uint32]]:
    """Return new counts of negatives, comparing two parts, or a part with itself."""
    labels = [of for of in (relation.labels, relation.gallery_labels) if of is not None]
    starts = np.cumsum([0, *(len(each.keys) for each in known)]).astype(np.uint64)
    offsets = [*(each.offsets[:-1] + start for each, start in zip(known, starts)), starts[-1:]]
    positives = Positives(*map(np.concatenate, [offsets, *list(zip(*known))[1:]]))
    first, size = loaded.first, len(loaded.rows[0])
    options: dict[str, Any] = {"split": size, "first_items": first}
    if len(loaded.rows) == 1:
        options = {"split": None, "first_items": (first[0], first[0] + size)}
    options |= {**loaded.options, **positives._asdict()}
    joined = Relation(labels=np.concatenate(labels))
    counts = _native.count_symmetric_negatives(loaded.items, joined, **options)
    return np.split((counts - positives.counts).astype(np.uint32), [len(known[0].counts)])[
        : len(known)
    ]
