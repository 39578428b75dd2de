"""Shards, and how a side's rows are divided into blocks of about equal size.

Shapes: `N` rows used in a side, `D` dim, `B` rows in a part.
"""

from __future__ import annotations

import math
import os
import socket
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.files import load_array

Source = str | os.PathLike[str] | Callable[[], Any] | Any

# Defaults for `block`: the minimum number of blocks per side, to give workers enough pairs, and the
# minimum and maximum number of rows per block.
_BLOCKS, _LEAST, _MOST = 4, 8_192, 131_072


@dataclass(frozen=True, slots=True)
class Shard:
    """Some or all rows of a shard. If the source is an array in memory, only these rows are
    pickled.

    Attributes:
        name: the name to use in errors, for example ``shards[3] (part-3.npy)``.
        source: the path of a file, see `load_array`, a function that returns an array, or an array
            in memory.
        similarity: ``"hamming"`` if rows are codes.
        shape, dtype: the full shard's shape (rows, D), and the dtype to compare in; (0, 0) and ""
            if not known yet.
        rows: a range, or sorted places.
        held: the array's rows, after pickling.
    """

    name: str
    source: Any
    similarity: str
    shape: tuple[int, int] = (0, 0)
    dtype: str = ""
    rows: Any = range(0)
    held: npt.NDArray[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        sent = self
        if isinstance(self.source, np.ndarray):
            sent = replace(self, source=None, held=np.ascontiguousarray(self.read()))
        return Shard, tuple(getattr(sent, field.name) for field in fields(sent))

    def open(self) -> npt.NDArray[Any]:
        """Open the shard, mapping a file into memory, and check that shape and dtype have not
        changed.
        """
        options: Any = {"may_be_empty": True, "widens": False}
        array = arguments.check_rows(self._load(), self.name, self.similarity, **options)
        if self.dtype and (array.shape, self._compared(array)) != (self.shape, self.dtype):
            raise ValueError(
                f"{self.name} has shape {array.shape} and dtype {array.dtype} on "
                f"{socket.gethostname()}, but had {self.shape} and {self.dtype} before: don't "
                "change shards until the end"
            )
        return array

    def _load(self) -> Any:
        if not isinstance(self.source, str):
            return self.source() if callable(self.source) else self.source
        try:
            return load_array(self.source)
        except FileNotFoundError:
            raise ValueError(
                f"{self.name} is absent on {socket.gethostname()}; expected a path that all "
                "workers can read, for example in a shared folder"
            ) from None
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(
                f"{self.name} can't be read on {socket.gethostname()}: {error}"
            ) from None

    def describe(self) -> Shard:
        """Open the shard, and return a copy that knows shape and dtype. Arrays are converted only
        here.
        """
        array = self.open()
        source = self.source if isinstance(self.source, str) or callable(self.source) else array
        dtype = self._compared(array)
        return replace(self, source=source, shape=array.shape, dtype=dtype, rows=range(len(array)))

    def _compared(self, array: npt.NDArray[Any]) -> str:
        return arguments.widened(array.dtype, self.similarity).name

    def read(self) -> npt.NDArray[Any]:
        """Return the rows, mapped if they are contiguous in a file."""
        rows: npt.NDArray[Any] = self.open()[index(self.rows)] if self.held is None else self.held
        return rows


def to_shards(sources: Sequence[Source], name: str, similarity: str) -> list[Shard]:
    """Convert a sequence of sources to shards. Arrays are described here, other sources by the
    workers.
    """
    if isinstance(sources, (str, bytes)) or not isinstance(sources, Sequence):
        raise TypeError(
            f"{name} is a {type(sources).__name__}; expected a list of shards: paths of .npy "
            "files, arrays, or functions that return arrays. If there is only one array, use "
            "evaluate or knn"
        )
    if len(sources) == 0:
        raise ValueError(f"{name} is empty; expected at least one shard")
    shards = []
    for place, source in enumerate(sources):
        if isinstance(
            source, (str, os.PathLike)
        ):  # absolute, because workers can run in different folders
            shard = Shard(f"{name}[{place}] ({source})", str(Path(source).absolute()), similarity)
        else:
            shard = Shard(f"{name}[{place}]", source, similarity)
            shard = shard if callable(source) else shard.describe()
        shards.append(shard)
    return shards


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that a task should read. A block is a part with consecutive rows."""

    shards: list[Shard]  # the shards of these rows, without other rows
    rows: Any  # the rows' places in the side: a range for a block, otherwise sorted places (B,)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        """The shards' names, to be used in errors."""
        first, last = self.shards[0].name, self.shards[-1].name
        return first if first == last else f"{first} to {last}"

    def name_row(self, row: int) -> str:
        """Return the shard's name and the row's index there, to be used in errors."""
        for shard in self.shards:
            if row < len(shard.rows):
                break
            row -= len(shard.rows)
        return f"{shard.name} row {shard.rows[row]}"


class Side:
    """The rows used in a side, divided into blocks.

    Args:
        shards: the side's shards.
        block: maximum rows per block; by default, workers get enough blocks, and blocks are cheap
            to read.
        kept: the sorted rows to be used; by default all.
    """

    def __init__(
        self, shards: Sequence[Shard], block: int | None, kept: npt.NDArray[Any] | None = None
    ) -> None:
        self.shards = list(shards)
        if kept is not None:
            ends = np.cumsum([0, *(shard.shape[0] for shard in shards)])
            for number, (start, end) in enumerate(pairwise(ends)):
                low, high = np.searchsorted(kept, (start, end))
                self.shards[number] = replace(
                    shards[number], rows=kept[low:high].astype(np.int64) - start
                )
        n = sum(len(shard.rows) for shard in self.shards)
        most = int(np.clip(-(-n // _BLOCKS), _LEAST, _MOST))
        most = most if block is None else arguments.positive(block, "block")
        edges = np.linspace(0, n, -(-n // most) + 1).astype(np.int64).tolist()
        self.blocks = [self.take(range(*edge)) for edge in pairwise(edges)]
        self._digests, self._is_read = np.zeros(n, np.uint64), np.zeros(n, np.bool_)

    def __len__(self) -> int:
        return len(self._digests)

    def take(self, rows: Any) -> Part:
        """Return rows, given by a range or sorted places, as a part that a task can read."""
        shards, start = [], 0
        for shard in self.shards:
            places = rows[bisect_left(rows, start) : bisect_left(rows, start + len(shard.rows))]
            if len(places) > 0:
                if places[-1] - places[0] == len(places) - 1:
                    taken = shard.rows[places[0] - start : places[-1] - start + 1]
                else:
                    taken = (
                        places - start
                        if isinstance(shard.rows, range)
                        else shard.rows[places - start]
                    )
                shards.append(replace(shard, rows=taken))
            start += len(shard.rows)
        return Part(shards, rows)

    def check_digests(self, part: Part, digests: npt.NDArray[np.uint64]) -> None:
        """Raise a ValueError if a row's digest differs from an earlier task's digest; name the
        first such row.
        """
        rows = index(part.rows)
        differs = self._is_read[rows] & (self._digests[rows] != digests)
        if differs.any():
            raise ValueError(
                f"{part.name_row(int(np.argmax(differs)))} changed between two tasks; expected the "
                "same rows in all tasks: don't change shards until the end, and give all workers "
                "the same files"
            )
        self._digests[rows] = digests
        self._is_read[rows] = True


def index(rows: Any) -> slice | npt.NDArray[np.int64]:
    """Convert a range or places so that it can be used to index an array."""
    return slice(rows.start, rows.stop) if isinstance(rows, range) else rows


def read(parts: Sequence[Part]) -> npt.NDArray[Any]:
    """Read the rows of parts into an array in memory."""
    shards = [shard for part in parts for shard in part.shards]
    array = np.empty((sum(map(len, parts)), shards[0].shape[1]), shards[0].dtype)
    start = 0
    for shard in shards:
        array[start : start + len(shard.rows)] = shard.read()
        start += len(shard.rows)
    return array


def digest_rows(x: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return a number per row (B,), used to detect changed rows: Σ word_i · w_i modulo 2**64, w_i
    odd.
    """
    words = x.view(f"u{math.gcd(x.shape[1] * x.itemsize, 8)}")
    weights = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    ) | np.uint64(1)
    digests: npt.NDArray[np.uint64] = np.einsum("ij,j->i", words, weights)
    return digests
