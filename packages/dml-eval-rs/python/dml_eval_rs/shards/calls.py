"""One call: its sides, and its tasks, each of a pair of blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.arguments import Progress, Sides
from dml_eval_rs.matches.relation import Relation, relate
from dml_eval_rs.shards.running import Function, Key, Map, Work, run_tasks
from dml_eval_rs.shards.sides import Part, Side, names_of
from dml_eval_rs.shards.sources import Shard, Source, check_alike, to_shards

Tile = tuple[int, int]  # the number of a block of queries, and of a block of the gallery


def describe_shards(
    shards: Sequence[Source],
    gallery: Sequence[Source] | None,
    similarity: str,
    map: Map,
    names: tuple[str, str] = ("shards", "gallery"),
) -> list[list[Shard]]:
    """Return the shards of each side with their shapes and dtypes, as the workers see them.

    Raises:
        TypeError, ValueError: naming a shard that can't be read, has the wrong dtype, or differs from the others in
            width or dtype; if a side has no rows.
    """
    found = [
        to_shards(side, name, similarity) for side, name in zip((shards, gallery), names) if side is not None
    ]

    def tasks() -> Iterator[tuple[Work, Shard]]:
        for side, of_side in enumerate(found):
            for place, shard in enumerate(of_side):
                if not shard.dtype:
                    yield Work(("describe", side, place), "", None), shard

    for (_, side, place), shard in run_tasks(map, _describe, tasks(), lambda key: found[key[1]][key[2]].name):
        found[side][place] = shard
    check_alike(*found)
    for name, of_side in zip(names, found):
        if not any(shard.shape[0] for shard in of_side):
            raise ValueError(f"{name} hold no rows; expected at least one")
    return found


def _describe(work: Work, shard: Shard) -> Shard:
    return shard.describe()


def relate_shards(
    found: Sequence[Sequence[Shard]],
    labels: object,
    gallery_labels: object,
    block: int | None,
    exclude: npt.ArrayLike | None = None,
    unmatched: str = "zero",
) -> tuple[list[Side], Relation, Sides]:
    """Return the sides without junk, their relation, and arrays like the rows of each side, of one number in memory."""
    stand_ins = [
        np.broadcast_to(np.zeros((), of[0].dtype), (sum(shard.shape[0] for shard in of), of[0].shape[1]))
        for of in found
    ]
    rows = Sides(stand_ins[0], stand_ins[1] if len(found) > 1 else None)
    names = ("shards", "gallery")
    relation = relate(labels, gallery_labels, rows, names, exclude=exclude, unmatched=unmatched)
    kept = relation.kept if len(found) == 1 else None
    sides = [Side(found[0], block, kept, relation.labels, relation.groups, relation.exclude)]
    if len(found) > 1:
        sides.append(Side(found[1], block, relation.kept, relation.gallery_labels, relation.gallery_groups))
    return sides, relation, rows


@dataclass(slots=True)
class Call:
    """One call.

    Attributes:
        queries, gallery: the rows; the same object if the queries search one another.
        symmetric: whether a pair of rows is compared once for both.
        options: the tasks' options.
        map: runs tasks.
        progress: called with the pairs that are compared, and all pairs.
        arrays: other arguments that decide the results.
        digest: a digest of the arguments.
        done, total: what `progress` gets.
    """

    queries: Side
    gallery: Side
    symmetric: bool
    options: Any
    map: Map
    progress: Progress | None
    arrays: Sequence[npt.NDArray[Any] | None] = ()
    digest: str = field(init=False)
    done: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        shards = [shard for side in self.sides for shard in side.shards]
        shapes = [(shard.name, shard.shape, shard.dtype) for shard in shards]
        digest = hashlib.blake2b(repr((self.options, shapes)).encode(), digest_size=16)
        for array in self.arrays:
            digest.update(b"none" if array is None else np.ascontiguousarray(array).data)
        self.digest = digest.hexdigest()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides."""
        return self.queries, self.gallery

    def tiles(self) -> list[Tile]:
        """Return the pairs of blocks to compare; where pairs of rows are symmetric, with i ≤ j."""
        rows = len(self.queries.blocks)
        columns = range(len(self.gallery.blocks))
        return [(i, j) for j in columns for i in range(j + 1 if self.symmetric else rows)]

    def pairs(self, tile: Tile) -> int:
        """Return the number of pairs of rows of two blocks."""
        rows, columns = map(len, self.blocks(tile))
        return rows * (rows - 1) // 2 if self.symmetric and tile[0] == tile[1] else rows * columns

    def run(
        self,
        name: str,
        function: Function,
        tiles: Sequence[Tile],
        entries: Callable[[Tile], Iterable[Any]],
    ) -> Iterator[tuple[Tile, list[Any]]]:
        """Yield each pair of blocks with its task's value, and check the rows' digests.

        Args:
            name: names the tasks, of each pair of blocks once.
            function: a function of `Work`, a block of queries, one of the gallery (None if it is the same block) and
                more entries. Returns a list that begins with the digests of the blocks' rows.
            tiles: the pairs of blocks.
            entries: returns the other entries of a task.
        """

        def tasks() -> Iterator[tuple[Any, ...]]:
            for tile in tiles:
                queries, items = self.blocks(tile)
                yield self.work((name, *tile)), queries, None if items is queries else items, *entries(tile)

        for (_, *tile), (digests, *value) in run_tasks(self.map, function, tasks(), self._describe):
            for side, number, digest in zip(self.sides, tile, digests):
                side.check_digests(side.blocks[number].rows, digest)
            yield (tile[0], tile[1]), value
            self.done += self.pairs((tile[0], tile[1]))
            if self.progress is not None:
                self.progress(self.done, self.total)

    def run_all(self, name: str, function: Function, *shared: Any) -> Iterator[tuple[Tile, list[Any]]]:
        """Run tasks of all pairs of blocks with the same other entries, as `run`."""
        tiles = self.tiles()
        self.total += sum(map(self.pairs, tiles))
        return self.run(name, function, tiles, lambda _: shared)

    def work(self, key: Key) -> Work:
        """Return the first entry of a task."""
        return Work(key, self.digest, self.options)

    def blocks(self, tile: Tile) -> tuple[Part, Part]:
        """Return a pair of blocks."""
        return self.queries.blocks[tile[0]], self.gallery.blocks[tile[1]]

    def _describe(self, key: Key) -> str:
        return " with ".join(names_of(block.pieces) for block in self.blocks(key[1:]))
