"""The driver's part of an evaluation: which pairs of blocks are tasks, and what becomes of their results.

Shapes: `Q` queries, `C` classes, `P` positives of all queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.shards.calls import Call, Tile
from dml_eval_rs.shards.running import Key, Work, run_tasks
from dml_eval_rs.shards.sides import Part, names_of
from dml_eval_rs.shards.sources import Rows
from dml_eval_rs.shards.tasks import Listed, Positives, count_negatives, find_positives
from dml_eval_rs.verification.rates import to_order

_Asked = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # places of queries, and of items, ascending


@dataclass(frozen=True, slots=True)
class Counting:
    """An evaluation in progress: its tasks, and the relation of all queries to all items."""

    call: Call
    relation: Relation

    def count(self) -> Positives:
        """Find all positives, count all negatives, and return both."""
        call, per_positive = self.call, 2 if self.call.options.ties == "expected" else 1
        offsets, keys, indices = self._find_positives()
        counts = np.zeros(per_positive * len(keys) + len(call.queries), np.uint64)
        positives = Positives(offsets, keys, indices, counts)

        def slots(block: Part) -> slice:
            low, high = (
                int(offsets[row]) * per_positive + row for row in (block.rows.start, block.rows.stop)
            )
            return slice(low, high)

        def known(block: Part) -> Positives:
            of = offsets[block.rows.start : block.rows.stop + 1]
            found = slice(int(of[0]), int(of[-1]))
            return Positives(of - of[0], keys[found], indices[found], counts[slots(block)].copy())

        first, others = self.waves()
        call.total = sum(map(call.pairs, (*first, *others)))
        # The counts of the first wave tell the second wave's tasks which positives don't matter any more.
        for tiles in (first, others):
            before = [known(block) for block in call.queries.blocks]

            def entries(tile: Tile, before: list[Positives] = before) -> list[Any]:
                queries, items = call.blocks(tile)
                of_items = before[tile[1]] if call.symmetric and items is not queries else None
                return [before[tile[0]], of_items, self._among(queries.rows, items.rows)]

            for tile, new in call.run("count", count_negatives, tiles, entries):
                for block, counted in zip(call.blocks(tile), new):
                    counts[slots(block)] += counted
        return positives

    def waves(self) -> tuple[list[Tile], list[Tile]]:
        """Return the pairs of blocks: one of each block of queries, and the others."""
        columns = len(self.call.gallery.blocks)
        first = [(i, i % columns) for i in range(len(self.call.queries.blocks))]
        return first, [tile for tile in self.call.tiles() if tile[1] != tile[0] % columns]

    # Positives

    def _find_positives(
        self,
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64], npt.NDArray[np.uint64]]:
        """Find the positives of all queries; each query's by key, and of equal keys by index."""
        call = self.call
        found: list[list[Any]] = [[] for _ in call.queries.blocks]
        asked: dict[Key, _Asked] = {}

        def describe(key: Key) -> str:
            return f"the matches of rows of {names_of(call.queries.narrow(asked[key][0]).pieces)}"

        tasks = self.positive_tasks(asked)
        for key, (digests, sizes, keys, indices) in run_tasks(call.map, find_positives, tasks, describe):
            rows = asked.pop(key)
            for side, of, digest in zip(call.sides, rows, digests):
                side.check_digests(of, digest)
            ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            for block, parts in zip(call.queries.blocks, found):
                low, high = np.searchsorted(rows[0], (block.rows.start, block.rows.stop))
                if low < high:
                    query = np.repeat(
                        (rows[0][low:high] - block.rows.start).astype(np.uint32), sizes[low:high]
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
        sizes, keys, indices = (np.concatenate(column) for column in zip(*columns))
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64), keys, indices

    def positive_tasks(self, asked: dict[Key, _Asked]) -> Iterator[tuple[Work, Part, Part | None, Listed]]:
        """Yield tasks of the queries and items that may match, and note in `asked` which these are."""
        call, of_labels = self.call, self.relation.offsets is None
        for number, rows in enumerate(self._rows_by_label() if of_labels else self._rows_by_blocks()):
            alone = of_labels and call.queries is call.gallery
            work = call.work(("positives", number, 0))
            asked[work.key] = rows
            items = None if alone else call.gallery.narrow(rows[1])
            yield work, call.queries.narrow(rows[0]), items, self._among(*rows)

    def _rows_by_label(self) -> Iterator[_Asked]:
        """Yield the rows of some labels that both sides have, about as many as those of a block."""
        queries, gallery = self.call.queries, self.call.gallery
        labels_Q, labels_G = queries.labels, gallery.labels
        assert labels_Q is not None
        assert labels_G is not None
        classes = 1 + max(int(labels_Q.max()), int(labels_G.max()))
        sizes_Q, sizes_G = (np.bincount(of, minlength=classes) for of in (labels_Q, labels_G))
        alone = queries is gallery
        size_C = sizes_G if alone else sizes_Q + sizes_G
        size_C = np.where(sizes_G > 1 if alone else sizes_Q * sizes_G > 0, size_C, 0)
        total, most = int(size_C.sum()), max(map(len, gallery.blocks))
        tasks = -(-total // most)
        task_C = np.minimum((np.cumsum(size_C) - 1) * tasks // max(total, 1), tasks - 1)
        task_C = np.where(size_C > 0, task_C, tasks)
        by_task = []
        for of in [labels_Q] if alone else [labels_Q, labels_G]:
            task = task_C[of]
            order = np.argsort(task, kind="stable")  # ascending within a task
            by_task.append((order, np.searchsorted(task[order], np.arange(tasks + 1))))
        for number in range(tasks):
            rows = [order[ends[number] : ends[number + 1]] for order, ends in by_task]
            if len(rows[0]):
                yield rows[0], rows[-1]

    def _rows_by_blocks(self) -> Iterator[_Asked]:
        """Yield the rows of each pair of blocks that are listed as matches."""
        for items in self.call.gallery.blocks:
            for queries in self.call.queries.blocks:
                listed = self._among(queries.rows, items.rows)
                if len(listed["items"]):
                    matched = np.flatnonzero(np.diff(listed["offsets"]))
                    yield matched + queries.places, np.unique(listed["items"]).astype(np.int64) + items.places

    def _among(self, queries: Rows, items: Rows) -> Listed:
        """Return the listed pairs of some queries and some items, by their places among these."""
        listed: Listed = {}
        for kind in ("", "ignored_"):
            offsets, all_items = (getattr(self.relation, f"{kind}{name}") for name in ("offsets", "items"))
            if offsets is None:
                continue
            starts, ends = (of[queries].astype(np.int64) for of in (offsets[:-1], offsets[1:]))
            sizes = ends - starts
            before = np.cumsum(sizes) - sizes
            found = all_items[np.repeat(starts - before, sizes) + np.arange(sizes.sum())].astype(np.int64)
            if isinstance(items, slice):
                at, inside = found - items.start, (found >= items.start) & (found < items.stop)
            else:
                at = np.minimum(np.searchsorted(items, found), len(items) - 1)
                inside = items[at] == found
            query = np.repeat(np.arange(len(sizes)), sizes)[inside]
            listed[f"{kind}offsets"] = np.searchsorted(query, np.arange(len(sizes) + 1)).astype(np.uint64)
            listed[f"{kind}items"] = at[inside].astype(np.uint32)
        return listed
