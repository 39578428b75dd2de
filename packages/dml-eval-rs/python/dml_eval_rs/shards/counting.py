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
                self._check_digests((i, j), (None, None), digests)
                for block, counted in zip((self.queries.blocks[i], self.gallery.blocks[j]), new):
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
        return f"{names_of(self.queries.blocks[key[1]])} with {names_of(self.gallery.blocks[key[2]])}"

    def _check_digests(self, tile: tuple[int, int], rows: tuple[Any, Any], digests: list[Any]) -> None:
        sides = (self.queries, self.gallery)
        for side, number, of, digest in zip(sides, tile, rows, digests):
            side.check_digests(side.blocks[number], of, digest)

    # Positives

    def _find_positives(self) -> Columns:
        """Find the positives of all queries; each query's by key, and of equal keys by index."""
        found: list[list[Any]] = [[] for _ in self.queries.blocks]
        narrowed: dict[Key, tuple[Any, Any]] = {}
        tasks = self._positive_tasks(narrowed)
        for key, (digests, *ways) in run_tasks(self.map, find_positives, tasks, self._describe):
            rows = narrowed.pop(key)
            self._check_digests(key[1:], rows, digests)
            for number, of, (sizes, keys, indices) in zip(key[1:], rows, ways):
                found[number].append((np.repeat(of.astype(np.uint32), sizes), keys, indices))
        columns: list[Columns] = []
        for block, parts in zip(self.queries.blocks, found):
            parts.append((np.zeros(0, np.uint32), np.zeros(0), np.zeros(0, np.uint64)))
            query_P, key_P, index_P = (np.concatenate(column) for column in zip(*parts))
            order = np.lexsort((index_P, ~order_of(key_P), query_P))
            sizes = np.bincount(query_P, minlength=len(block)).astype(np.uint64)
            columns.append((sizes, key_P[order], index_P[order]))
            parts.clear()
        sizes, keys, indices = (np.concatenate(column) for column in zip(*columns))
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64), keys, indices

    def _positive_tasks(self, narrowed: dict[Key, tuple[Any, Any]]) -> Iterator[Task]:
        """Yield the tasks of pairs of blocks with possible matches, of the rows that may have one."""
        for j, items in enumerate(self.gallery.blocks):
            for i, queries in enumerate(
                self.queries.blocks[: j + 1] if self.options.symmetric else self.queries.blocks
            ):
                listed = self._listed((i, j))
                if listed.relevant is None:
                    rows = self._rows_of_shared_labels(queries, items)
                else:
                    relevant = [np.unique(pairs).astype(np.int64) for pairs in listed.relevant]
                    rows = (relevant[0], relevant[1])
                if len(rows[0]) == 0 or len(rows[1]) == 0:
                    continue
                sides = [self._narrow(side, block, of) for side, block, of in (
                    (self.queries, queries, rows[0]), (self.gallery, items, rows[1]))]  # fmt: skip
                listed = Listed(_among(listed.relevant, rows), _among(listed.ignored, rows))
                task = self._task("positives", (i, j), sides[0], sides[1], listed)
                narrowed[task[0].key] = rows
                yield task

    def _rows_of_shared_labels(self, queries: Block, items: Block) -> tuple[Any, Any]:
        """Return the rows of each block whose labels the other has; of a block with itself, another row."""
        labels_Q, labels_G = self._labels(queries, self.queries), self._labels(items, self.gallery)
        classes = 1 + max(int(labels_Q.max()), int(labels_G.max()))
        if self.options.symmetric and queries is items:
            rows = np.flatnonzero(np.bincount(labels_Q, minlength=classes)[labels_Q] > 1)
            return rows, rows
        has_Q, has_G = np.zeros(classes, np.bool_), np.zeros(classes, np.bool_)
        has_Q[labels_Q], has_G[labels_G] = True, True
        return np.flatnonzero(has_G[labels_Q]), np.flatnonzero(has_Q[labels_G])

    # The relation of some rows

    def _labels(self, block: Block, side: Side) -> npt.NDArray[np.uint32]:
        labels = self._of(side, "labels")
        assert labels is not None
        return labels[block.start : block.stop]

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

    def _narrow(self, side: Side, block: Block, rows: npt.NDArray[np.int64]) -> Part:
        places = rows + block.start
        codes = [self._of(side, name) for name in ("labels", "groups")]
        labels, groups = (None if of is None else of[places] for of in codes)
        return Part(block.narrow(rows), places, labels, groups, self._own(side, places))

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


def _among(pairs: Pairs | None, rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]) -> Pairs | None:
    """Return the pairs whose rows are among these, by their places there."""
    if pairs is None:
        return None
    places = [np.minimum(np.searchsorted(of, pair), len(of) - 1) for of, pair in zip(rows, pairs)]
    both = (rows[0][places[0]] == pairs[0]) & (rows[1][places[1]] == pairs[1])
    return places[0][both].astype(np.uint32), places[1][both].astype(np.uint32)
