"""The driver's part of an evaluation: which pairs of blocks are tasks, and what becomes of their results.

Shapes: `Q` queries, `B` rows of a block, `C` classes, `P` positives of all queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import __version__
from dml_eval_rs.partial_counts import order_of
from dml_eval_rs.relation import Relation
from dml_eval_rs.shards.gallery import Block, Side, names_of
from dml_eval_rs.shards.running import Key, Map, Work, run_tasks
from dml_eval_rs.shards.tasks import Listed, Options, Pairs, Part, Positives, count_negatives, find_positives

Task = tuple[Work, Part, Part | None, Listed]
Asked = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # rows of queries, and of the gallery, ascending
Columns = tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64], npt.NDArray[np.uint64]]


@dataclass(slots=True)
class Counting:
    """An evaluation in progress.

    Attributes:
        queries, gallery: the rows; the same object if the queries are their own gallery.
        relation: of all queries to all items.
        options: of the tasks.
        call: a digest of the call's arguments.
        map: runs tasks.
        progress: called with the pairs that are counted, and all pairs.
    """

    queries: Side
    gallery: Side
    relation: Relation
    options: Options
    call: str
    map: Map
    progress: Callable[[int, int], object] | None

    def count(self) -> Positives:
        """Find all positives, count all negatives, and return both."""
        offsets, keys, indices = self._find_positives()
        per_positive = 2 if self.options.ties == "expected" else 1
        counts = np.zeros(per_positive * len(keys) + len(self.queries), np.uint64)
        positives = Positives(offsets, keys, indices, counts)
        first, others = self._waves()
        total = sum(self._pairs(tile) for tile in (*first, *others))
        done = 0
        # The counts of the first wave tell the second one's tasks which positives matter no longer.
        for tiles in (first, others):
            parts = self._counted_parts(positives, per_positive)
            tasks = (self._task("count", tile, *parts(tile), self._listed(tile)) for tile in tiles)
            for (_, i, j), (digests, *new) in run_tasks(self.map, count_negatives, tasks, self._describe):
                blocks = (self.queries.blocks[i], self.gallery.blocks[j])
                for side, block, digest in zip((self.queries, self.gallery), blocks, digests):
                    side.check_digests(block.rows, digest)
                for block, counted in zip(blocks, new):
                    counts[self._slots(positives, block, per_positive)] += counted
                done += self._pairs((i, j))
                if self.progress is not None:
                    self.progress(done, total)
        return positives

    def _waves(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the pairs of blocks: one of each block of queries, and the others."""
        rows, columns = len(self.queries.blocks), len(self.gallery.blocks)
        first = [(i, i % columns) for i in range(rows)]
        tiles = ((i, j) for j in range(columns) for i in range(j + 1 if self.options.symmetric else rows))
        return first, [tile for tile in tiles if tile[1] != tile[0] % columns]

    def _pairs(self, tile: tuple[int, int]) -> int:
        rows, columns = len(self.queries.blocks[tile[0]]), len(self.gallery.blocks[tile[1]])
        return rows * (rows - 1) // 2 if self.options.symmetric and tile[0] == tile[1] else rows * columns

    def _task(self, name: str, tile: tuple[int, int], queries: Part, gallery: Part, listed: Listed) -> Task:
        alone = self.options.symmetric and tile[0] == tile[1]
        work = Work((name, *tile), self.call, __version__, self.options)
        return work, queries, None if alone else gallery, listed

    def _describe(self, key: Key) -> str:
        return f"{names_of(self.queries.blocks[key[1]].pieces)} with {names_of(self.gallery.blocks[key[2]].pieces)}"

    # Positives

    def _find_positives(self) -> Columns:
        """Find the positives of all queries; each query's by key, and of equal keys by index."""
        found: list[list[Any]] = [[] for _ in self.queries.blocks]
        asked: dict[Key, Asked] = {}
        tasks = self._positive_tasks(asked)

        def describe(key: Key) -> str:
            return f"the matches of rows of {names_of(self.queries.narrow(asked[key][0]))}"

        for key, (digests, sizes, keys, indices) in run_tasks(self.map, find_positives, tasks, describe):
            rows = asked.pop(key)
            for side, of, digest in zip((self.queries, self.gallery), rows, digests):
                side.check_digests(of, digest)
            ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            for block, parts in zip(self.queries.blocks, found):
                low, high = np.searchsorted(rows[0], (block.start, block.stop))
                if low < high:
                    query = np.repeat((rows[0][low:high] - block.start).astype(np.uint32), sizes[low:high])
                    of_block = slice(ends[low], ends[high])
                    parts.append((query, keys[of_block], indices[of_block]))
        columns: list[Columns] = []
        for block, parts in zip(self.queries.blocks, found):
            parts.append((np.zeros(0, np.uint32), np.zeros(0), np.zeros(0, np.uint64)))
            query_P, key_P, index_P = (np.concatenate(column) for column in zip(*parts))
            order = np.lexsort((index_P, ~order_of(key_P), query_P))
            of_query = np.bincount(query_P, minlength=len(block)).astype(np.uint64)
            columns.append((of_query, key_P[order], index_P[order]))
            parts.clear()
        sizes, keys, indices = (np.concatenate(column) for column in zip(*columns))
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64), keys, indices

    def _positive_tasks(self, asked: dict[Key, Asked]) -> Iterator[Task]:
        """Yield tasks of the queries and items that may match; of labels, so that each row is read once."""
        relation = self.relation
        of_labels = relation.offsets is None
        for number, rows in enumerate(self._rows_by_label() if of_labels else self._rows_by_blocks()):
            queries, items = (self._narrow(side, of) for side, of in zip((self.queries, self.gallery), rows))
            listed = Listed(
                _pairs_among(relation.offsets, relation.items, *rows),
                _pairs_among(relation.left_out_offsets, relation.left_out_items, *rows),
            )
            work = Work(("positives", number, 0), self.call, __version__, self.options)
            asked[work.key] = rows
            yield work, queries, None if of_labels and self.queries is self.gallery else items, listed

    def _rows_by_label(self) -> Iterator[Asked]:
        """Yield the rows of some labels that both sides have, about as many as those of a block."""
        labels = [self._of(side, "labels") for side in (self.queries, self.gallery)]
        labels_Q, labels_G = labels[0], labels[1]
        assert labels_Q is not None
        assert labels_G is not None
        classes = 1 + max(int(labels_Q.max()), int(labels_G.max()))
        sizes_Q, sizes_G = (np.bincount(of, minlength=classes) for of in (labels_Q, labels_G))
        alone = self.queries is self.gallery
        size_C = (
            np.where(sizes_G > 1, sizes_G, 0)
            if alone
            else np.where(sizes_Q * sizes_G > 0, sizes_Q + sizes_G, 0)
        )
        total, most = int(size_C.sum()), max(map(len, self.gallery.blocks))
        tasks = -(-total // most)
        task_C = np.where(
            size_C > 0, np.minimum((np.cumsum(size_C) - 1) * tasks // max(total, 1), tasks - 1), tasks
        )
        by_task = []
        for of in [labels_Q] if alone else [labels_Q, labels_G]:
            task = task_C[of]
            order = np.argsort(task, kind="stable")  # of one task ascending
            by_task.append((order, np.searchsorted(task[order], np.arange(tasks + 1))))
        for number in range(tasks):
            rows = [order[ends[number] : ends[number + 1]] for order, ends in by_task]
            if len(rows[0]):
                yield rows[0], rows[-1]

    def _rows_by_blocks(self) -> Iterator[Asked]:
        """Yield the rows of each pair of blocks that are listed as matches."""
        for items in self.gallery.blocks:
            for queries in self.queries.blocks:
                pairs = _pairs_within(self.relation.offsets, self.relation.items, queries, items)
                if pairs is not None and len(pairs[0]):
                    yield (
                        np.unique(pairs[0]).astype(np.int64) + queries.start,
                        np.unique(pairs[1]).astype(np.int64) + items.start,
                    )

    # The relation of some rows

    def _of(self, side: Side, name: str) -> npt.NDArray[np.uint32] | None:
        is_gallery = side is self.gallery and side is not self.queries
        codes: npt.NDArray[np.uint32] | None = getattr(
            self.relation, f"gallery_{name}" if is_gallery else name
        )
        return codes

    def _own(self, side: Side, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        if side is not self.queries:
            return None
        if self.queries is self.gallery:
            return places
        return None if self.relation.indices is None else self.relation.indices[places]

    def _narrow(self, side: Side, rows: npt.NDArray[np.int64]) -> Part:
        codes = [self._of(side, name) for name in ("labels", "groups")]
        labels, groups = (None if of is None else of[rows] for of in codes)
        return Part(side.narrow(rows), rows, labels, groups, self._own(side, rows))

    def _counted_parts(
        self, positives: Positives, per_positive: int
    ) -> Callable[[tuple[int, int]], tuple[Part, Part]]:
        """Return a function of a pair of blocks that gives their parts; tasks of one block share a part."""

        def part(side: Side, block: Block) -> Part:
            places = np.arange(block.start, block.stop)
            labels = self._of(side, "labels")
            known = None
            if side is self.queries:
                of = positives.offsets[block.start : block.stop + 1]
                of_block = slice(int(of[0]), int(of[-1]))
                counts = positives.counts[self._slots(positives, block, per_positive)].copy()
                known = Positives(of - of[0], positives.keys[of_block], positives.indices[of_block], counts)
            own = None if self.options.symmetric else self._own(side, places)
            of_labels = None if labels is None else labels[block.start : block.stop]
            return Part(block.pieces, block.start, of_labels, None, own, known)

        queries = [part(self.queries, block) for block in self.queries.blocks]
        gallery = (
            queries
            if self.options.symmetric
            else [part(self.gallery, block) for block in self.gallery.blocks]
        )
        return lambda tile: (queries[tile[0]], gallery[tile[1]])

    @staticmethod
    def _slots(positives: Positives, block: Block, per_positive: int) -> slice:
        low, high = (int(positives.offsets[row]) * per_positive + row for row in (block.start, block.stop))
        return slice(low, high)

    def _listed(self, tile: tuple[int, int]) -> Listed:
        queries, items = self.queries.blocks[tile[0]], self.gallery.blocks[tile[1]]
        relation = self.relation
        return Listed(
            _pairs_within(relation.offsets, relation.items, queries, items),
            _pairs_within(relation.left_out_offsets, relation.left_out_items, queries, items),
        )


def _pairs_within(
    offsets: npt.NDArray[np.uint64] | None, items: npt.NDArray[np.uint32] | None, queries: Block, block: Block
) -> Pairs | None:
    """Return the listed pairs of rows of two blocks."""
    if offsets is None or items is None:
        return None
    of = offsets[queries.start : queries.stop + 1].astype(np.int64)
    listed = items[of[0] : of[-1]]
    inside = (listed >= block.start) & (listed < block.stop)
    query = np.repeat(np.arange(len(queries), dtype=np.uint32), np.diff(of))
    return query[inside], (listed[inside] - block.start).astype(np.uint32)


def _pairs_among(
    offsets: npt.NDArray[np.uint64] | None,
    items: npt.NDArray[np.uint32] | None,
    queries: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> Pairs | None:
    """Return the listed pairs of some queries and some rows, by their places among these."""
    if offsets is None or items is None:
        return None
    starts = offsets[queries].astype(np.int64)
    sizes = offsets[queries + 1].astype(np.int64) - starts
    before = np.cumsum(sizes) - sizes
    listed = items[np.repeat(starts - before, sizes) + np.arange(sizes.sum())].astype(np.int64)
    query = np.repeat(np.arange(len(queries), dtype=np.uint32), sizes)
    at = np.minimum(np.searchsorted(rows, listed), len(rows) - 1)
    inside = rows[at] == listed
    return query[inside], at[inside].astype(np.uint32)
