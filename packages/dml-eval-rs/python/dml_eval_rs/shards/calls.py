"""One call: its sides, and its tasks, each of a pair of blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.arguments import Progress, Sides
from dml_eval_rs.shards.running import Function, Key, Map, Work, run_tasks
from dml_eval_rs.shards.sides import Side, names_of
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

    Args:
        shards, gallery: the shards; no gallery if the queries search one another.
        similarity: ``"hamming"`` expects codes, every other similarity floats.
        map: runs a task for each shard that is no array.
        names: the arguments' names.

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


def stand_in(sides: Sequence[Sequence[Shard]]) -> Sides:
    """Return arrays of the shape and dtype of all shards of each side, with a single number in memory."""
    arrays: list[npt.NDArray[Any]] = []
    for shards in sides:
        shape = (sum(shard.shape[0] for shard in shards), shards[0].shape[1])
        arrays.append(np.broadcast_to(np.zeros((), shards[0].dtype), shape))
    return Sides(arrays[0], arrays[1] if len(arrays) > 1 else None)


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
        rows, columns = len(self.queries.blocks[tile[0]]), len(self.gallery.blocks[tile[1]])
        return rows * (rows - 1) // 2 if self.symmetric and tile[0] == tile[1] else rows * columns

    def run(
        self,
        name: str,
        function: Function,
        tiles: Sequence[Tile],
        entries: Callable[[Tile], Sequence[Any]],
    ) -> Iterator[tuple[Tile, list[Any]]]:
        """Yield each pair of blocks and the value of its task, without the rows' digests, which are checked.

        Args:
            name: the first part of the tasks' keys: each name is used for a pair of blocks once.
            function: returns a list that begins with the digests of both blocks' rows, or of one block's.
            tiles: the pairs of blocks.
            entries: returns a task's entries after its `Work`.
        """
        tasks = ((self.work((name, *tile)), *entries(tile)) for tile in tiles)
        for (_, *tile), (digests, *value) in run_tasks(self.map, function, tasks, self._describe):
            for side, number, digest in zip(self.sides, tile, digests):
                side.check_digests(side.blocks[number].rows, digest)
            yield (tile[0], tile[1]), value
            self.done += self.pairs((tile[0], tile[1]))
            if self.progress is not None:
                self.progress(self.done, self.total)

    def work(self, key: Key) -> Work:
        """Return the first entry of a task."""
        return Work(key, self.digest, self.options)

    def other(self, tile: Tile, parts: Sequence[Any]) -> Any:
        """Return the second part of a pair of blocks, or None if it is the first part."""
        return None if self.queries is self.gallery and tile[0] == tile[1] else parts[tile[1]]

    def _describe(self, key: Key) -> str:
        return f"{names_of(self.queries.blocks[key[1]].pieces)} with {names_of(self.gallery.blocks[key[2]].pieces)}"
