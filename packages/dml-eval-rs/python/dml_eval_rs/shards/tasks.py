"""The tasks of a call: pure functions that can run on any machine, in any order, and more than
once.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs.arguments import Progress, Sides
from dml_eval_rs.matches.relation import Relation, relate
from dml_eval_rs.shards.rows import Part, Shard, Side, Source, digest_rows, index, read, to_shards

VERSION = _native.VERSION

Key = tuple[str, int, int]  # a task's name, and the numbers of the blocks to read
Tile = tuple[int, int]  # the numbers of a query block and a gallery block
# A `Work`, a part of the queries, a part of the gallery (None if the parts are equal) and further
# entries; or a `Work` and a shard to describe.
Task = tuple[Any, ...]
# Like an executor's `map` for a single iterable. It must call the function once per task, and can
# return results in any order or twice. Tasks share entries, so a map can send entries separately.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class Work(NamedTuple):
    """The first entry of each task: the key, a digest of the call's arguments, and the driver's
    version.
    """

    key: Key
    call: str = ""
    version: str = VERSION


class Result(NamedTuple):
    """The value that a task returned, with the key and call from the `Work`."""

    key: Key
    call: str
    value: Any


def run_tasks(
    map: Map, function: Callable[..., Any], tasks: Iterable[Task], call: str = ""
) -> Iterator[tuple[Task, Any]]:
    """Call a picklable function with the entries of a task after the first, and yield each task
    once, with the value.

    Raises:
        TypeError, ValueError: if the map does not return the results of these tasks.
    """
    waiting: dict[Key, Task] = {}
    done: set[Key] = set()

    def issue() -> Iterator[Task]:
        for task in tasks:
            waiting[task[0].key] = task
            yield task

    issued = issue()
    for result in map(partial(_run, function), issued):
        if not isinstance(result, Result):
            raise TypeError(
                f"map returned a {type(result).__name__}; expected the function's results: if "
                "these are futures, wait"
            )
        if result.call != call or not (result.key in waiting or result.key in done):
            raise ValueError(
                "map returned a result from a different call; expected results of these tasks"
            )
        if result.key in waiting:  # otherwise the task ran twice, so the first result is used
            done.add(result.key)
            yield waiting.pop(result.key), result.value
    waiting |= {task[0].key: task for task in issued}  # add the tasks that the map did not read
    if waiting:
        lost = next(iter(waiting.values()))
        raise ValueError(
            f"map returned no result for {len(waiting)} of {len(waiting) + len(done)} tasks, the "
            f"first for {' with '.join(of.name for of in lost if isinstance(of, (Part, Shard)))}; "
            "expected a result per task: map should retry lost tasks"
        )


def _run(function: Callable[..., Any], task: Task) -> Result:
    work: Work = task[0]
    if work.version != VERSION:
        raise ValueError(
            f"dml-eval-rs is {VERSION} on {socket.gethostname()} and {work.version} in the driver; "
            "expected the same version on all workers"
        )
    return Result(work.key, work.call, function(*task[1:]))


def describe_shards(
    shards: Sequence[Source],
    gallery: Sequence[Source] | None,
    similarity: str,
    map: Map,
    names: tuple[str, str] = ("shards", "gallery"),
) -> list[list[Shard]]:
    """Let workers open the shards, and return the shards per side with shapes and dtypes.

    Raises:
        TypeError, ValueError: if a shard can't be read, is of a wrong dtype, or differs in width or
            dtype from other shards, or a side does not contain rows.
    """
    sides = [
        to_shards(side, name, similarity)
        for side, name in zip((shards, gallery), names)
        if side is not None
    ]
    unknown = (
        (Work(("describe", number, place)), shard)
        for number, side in enumerate(sides)
        for place, shard in enumerate(side)
        if not shard.dtype
    )
    for (work, _), shard in run_tasks(map, Shard.describe, unknown):
        _, number, place = work.key
        sides[number][place] = shard
    first = sides[0][0]
    for shard in (shard for side in sides for shard in side):
        if (shard.shape[1], shard.dtype) != (first.shape[1], first.dtype):
            raise ValueError(
                f"{shard.name} has shape {shard.shape} and dtype {shard.dtype}; expected "
                f"({shard.shape[0]}, {first.shape[1]}) and {first.dtype}, like {first.name}"
            )
    for name, side in zip(names, sides):
        if not any(len(shard.rows) for shard in side):
            raise ValueError(f"{name} has no rows; expected at least one row")
    return sides


class Loaded:
    """The arguments for a task's function: the call's options, and one or two parts with rows.

    Attributes:
        items: all rows in an array.
        rows: the rows per part. Use the first as the queries, and the last as the gallery.
        pair: the rows of both parts; if a single part is given, the second is None.
        first: for blocks, the places of the first query and the first item.
    """

    def __init__(self, options: dict[str, Any], parts: list[Part]) -> None:
        self.options, self.parts, self.items = options, parts, read(parts)
        self.rows = np.split(self.items, [len(parts[0])])[: len(parts)]
        self.pair = self.rows[0], self.rows[1] if len(parts) > 1 else None
        self.first = parts[0].rows[0], parts[-1].rows[0]


@dataclass(slots=True)
class Call:
    """A call: both sides (the same object if a gallery is not given), and the tasks' arguments.

    Attributes:
        options: options for the tasks' functions.
        relation: which of the used rows match.
        symmetric: whether to compare pairs of rows only once, for both rows.
        sides: the queries and the gallery.
        digest: a digest of the arguments, used to detect results of different calls.
        done, total: pairs of rows, to be reported to `progress`.
    """

    queries: Side
    gallery: Side
    options: dict[str, Any]
    map: Map
    progress: Progress | None
    relation: Relation = field(default_factory=Relation)
    symmetric: bool = False
    sides: tuple[Side, Side] = field(init=False)
    digest: str = field(init=False)
    done: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        self.sides = self.queries, self.gallery
        shapes = [(of.name, of.shape, of.dtype) for side in self.sides for of in side.shards]
        digest = hashlib.blake2b(repr((self.options, shapes)).encode(), digest_size=16)
        for array in self.relation.arrays():
            digest.update(b"none" if array is None else np.ascontiguousarray(array).data)
        self.digest = digest.hexdigest()

    def tiles(self) -> list[Tile]:
        """Return the pairs of blocks to compare. If pairs of rows are symmetric, only pairs with i
        ≤ j are needed.
        """
        rows = len(self.queries.blocks)
        columns = range(len(self.gallery.blocks))
        return [(i, j) for j in columns for i in range(j + 1 if self.symmetric else rows)]

    def count_pairs(self, tiles: Iterable[Tile]) -> int:
        """Count the pairs of rows in pairs of blocks."""
        total = 0
        for i, j in tiles:
            rows, columns = len(self.queries.blocks[i]), len(self.gallery.blocks[j])
            total += rows * (rows - 1) // 2 if self.symmetric and i == j else rows * columns
        return total

    def restrict(self, queries: Any, items: Any) -> Relation:
        """Restrict the relation to some queries and items, and number both from 0; items are the
        queries if None.

        If items are a block, `exclude` keeps places in the full gallery, and the core compares
        these with `first_item`.
        """
        of, own_Q = self.relation, None
        found: dict[str, Any] = {}
        for name in ("labels", "groups"):
            code_Q, code_G = getattr(of, name), getattr(of, f"gallery_{name}")
            if code_Q is not None:
                found[name] = code_Q[index(queries)]
                if items is not None:
                    found[f"gallery_{name}"] = (code_Q if code_G is None else code_G)[index(items)]
        blocks_exclude = not self.symmetric and (bool(found) or of.offsets is not None)
        if items is None or (isinstance(items, range) and not blocks_exclude):
            return Relation(**found)
        if self.queries is self.gallery:
            own_Q = np.r_[index(queries)]
        elif of.exclude is not None:
            own_Q = of.exclude[index(queries)]
        if own_Q is not None and not isinstance(items, range):
            place, inside = _find(own_Q, items)
            own_Q = np.where(inside, place, -1)
        found["exclude"] = own_Q
        for kind in ("", "ignored_"):
            offsets, all_items = getattr(of, f"{kind}offsets"), getattr(of, f"{kind}items")
            if offsets is not None:
                starts, ends = (
                    of[index(queries)].astype(np.int64) for of in (offsets[:-1], offsets[1:])
                )
                sizes = ends - starts
                before = np.cumsum(sizes) - sizes
                listed = all_items[np.repeat(starts - before, sizes) + np.arange(sizes.sum())]
                place, inside = _find(listed.astype(np.int64), items)
                query = np.repeat(np.arange(len(sizes)), sizes)[inside]
                found[f"{kind}offsets"] = np.searchsorted(query, np.arange(len(sizes) + 1)).astype(
                    np.uint64
                )
                found[f"{kind}items"] = place[inside].astype(np.uint32)
        return Relation(**found)

    def run(
        self, function: Callable[..., Any], tasks: Iterable[Task]
    ) -> Iterator[tuple[Task, Any]]:
        """Yield tasks with the values, and check the rows' digests.

        Tasks must be a key, a part of the queries, a part of the gallery or None, and further
        entries. The function is called with a `Loaded` and the further entries.
        """
        named = ((Work(key, self.digest), *entries) for key, *entries in tasks)
        compute = partial(_compute, function, self.options)
        for task, (digests, value) in run_tasks(self.map, compute, named, self.digest):
            for side, part, digest in zip(self.sides, task[1:], digests):
                side.check_digests(part, digest)
            yield task, value

    def run_tiles(
        self,
        name: str,
        function: Callable[..., Any],
        entries: Callable[[Tile], Iterable[Any]] = lambda _: (),
        tiles: Sequence[Tile] | None = None,
    ) -> Iterator[tuple[Tile, Any]]:
        """Run a task per pair of blocks, and yield the pairs with the values.

        The function is called with the relation between both blocks, and the values of `entries`.
        By default, all pairs are compared, and added to `total`.
        """
        if tiles is None:
            tiles = self.tiles()
            self.total += self.count_pairs(tiles)

        def tasks() -> Iterator[Task]:
            for i, j in tiles:
                queries, items = self.queries.blocks[i], self.gallery.blocks[j]
                gallery = None if items is queries else items
                item_rows = None if self.symmetric and gallery is None else items.rows
                relation = self.restrict(queries.rows, item_rows)
                yield (name, i, j), queries, gallery, relation, *entries((i, j))

        for (work, *_), value in self.run(function, tasks()):
            tile = work.key[1:]
            yield tile, value
            self.done += self.count_pairs([tile])
            if self.progress is not None:
                self.progress(self.done, self.total)


def begin_call(
    shards: Sequence[Source],
    labels: object,
    gallery: Sequence[Source] | None,
    gallery_labels: object,
    options: dict[str, Any],
    map: Map,
    block: int | None,
    progress: Progress | None,
    exclude: npt.ArrayLike | None = None,
) -> tuple[Call, Sides]:
    """Return a call with a relation, and stand-ins for both sides' rows, which do not use
    memory.
    """
    found = describe_shards(shards, gallery, options["similarity"], map)
    stand_ins = [
        np.broadcast_to(
            np.zeros((), of[0].dtype), (sum(shard.shape[0] for shard in of), of[0].shape[1])
        )
        for of in found
    ]
    rows = Sides(stand_ins[0], stand_ins[1] if gallery is not None else None)
    relation = relate(labels, gallery_labels, rows, ("shards", "gallery"), exclude=exclude)
    asked = Side(found[-1], block, relation.kept)
    asking = asked if gallery is None else Side(found[0], block)
    symmetric = gallery is None and relation.offsets is None and relation.ignored_offsets is None
    return Call(asking, asked, options, map, progress, relation, symmetric), rows


def _compute(
    function: Callable[..., Any],
    options: dict[str, Any],
    queries: Part,
    gallery: Part | None,
    *entries: Any,
) -> tuple[list[npt.NDArray[np.uint64]], Any]:
    """Read the parts, call the function, and return the rows' digests and the function's value.

    When the core raises an error that names a row, for example because a number is not finite, name
    the shard's row.
    """
    parts = [queries] if gallery is None else [queries, gallery]
    loaded = Loaded(options, parts)

    def name_row(found: re.Match[str]) -> str:
        part, row = parts[0] if found[1] == "queries" else parts[-1], int(found[2])
        in_second = row >= len(part)  # the array can contain the rows of both parts
        return parts[1].name_row(row - len(part)) if in_second else part.name_row(row)

    try:
        value = function(loaded, *entries)
    except ValueError as error:
        message = re.sub(r"^(queries|block|gallery) row (\d+)", name_row, str(error))
        raise ValueError(message) from None
    return [digest_rows(x) for x in loaded.rows], value


def _find(
    wanted: npt.NDArray[np.int64], rows: Any
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the places of the wanted rows in sorted rows, and which rows are present."""
    if isinstance(rows, range):
        return wanted - rows.start, (wanted >= rows.start) & (wanted < rows.stop)
    place = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    return place, rows[place] == wanted
