"""Shards of embeddings: their sources, shapes and dtypes, and the rows that a task reads.

Shapes: `N` rows of a shard, `D` dim, `R` rows read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.arguments import check_rows

Source = str | os.PathLike[str] | Callable[[], Any] | Any
Rows = slice | npt.NDArray[np.int64]

_SUMMED = 4096  # rows whose digests are computed at a time


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of an array in the driver's memory. Pickling copies only these rows."""

    array: npt.NDArray[Any]
    rows: Rows

    def __reduce__(self) -> tuple[type[HeldRows], tuple[npt.NDArray[Any], slice]]:
        return HeldRows, (np.ascontiguousarray(self.array[self.rows]), slice(None))


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, as a task gets it.

    Attributes:
        name: the name in errors, such as ``shards[3] (part-3.npy)``.
        source: the path of a .npy file, a function that returns an array, or an array in memory.
        similarity: ``"hamming"`` if the shard holds codes.
        shape: (N, D); (0, 0) until it is known.
        dtype: the numbers' dtype, in native byte order; empty until it is known.
    """

    name: str
    source: Any
    similarity: str
    shape: tuple[int, int] = (0, 0)
    dtype: str = ""

    def open(self) -> npt.NDArray[Any]:
        """Open the shard; a file is mapped, not read.

        Raises:
            TypeError, ValueError: naming the shard, if it can't be opened, or changed its shape or dtype.
        """
        array = check_rows(self._load(), self.name, self.similarity, may_be_empty=True)
        if self.dtype and (array.shape, array.dtype.name) != (self.shape, self.dtype):
            raise ValueError(
                f"{self.name} has shape {array.shape} and dtype {array.dtype} on {socket.gethostname()}; expected "
                f"{self.shape} and {self.dtype}, as at the beginning: leave shards unchanged until the end"
            )
        return array

    def _load(self) -> Any:
        if callable(self.source):
            return self.source()
        if not isinstance(self.source, (str, os.PathLike)):
            return self.source
        try:
            return np.load(Path(self.source), mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise ValueError(
                f"{self.name} is absent on {socket.gethostname()}; expected a path that every worker can read, such as "
                "one of a shared folder"
            ) from None
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.name} can't be read on {socket.gethostname()} ({error}); expected a .npy file"
            ) from None

    def describe(self) -> Shard:
        """Open the shard and return it with its shape and dtype."""
        array = self.open()
        return replace(self, shape=array.shape, dtype=array.dtype.name)


def to_shards(sources: Sequence[Source], name: str, similarity: str) -> list[Shard]:
    """Name the shards of a sequence, and describe those that are arrays."""
    if isinstance(sources, (str, bytes)) or not isinstance(sources, Sequence):
        raise TypeError(
            f"{name} is a {type(sources).__name__}; expected a list of shards: paths of .npy files, arrays, or "
            "functions that return arrays. For one array use evaluate or knn"
        )
    if len(sources) == 0:
        raise ValueError(f"{name} is empty; expected at least one shard")
    shards = []
    for place, source in enumerate(sources):
        if isinstance(source, (str, os.PathLike)):  # absolute, since workers may run in another folder
            shard = Shard(f"{name}[{place}] ({source})", str(Path(source).absolute()), similarity)
        else:
            shard = Shard(f"{name}[{place}]", source, similarity)
            if not callable(source):
                array = shard.open()
                shard = replace(shard, source=array).describe()
        shards.append(shard)
    return shards


def check_alike(*sides: Sequence[Shard]) -> None:
    """Check that all shards have the same width and dtype."""
    first = sides[0][0]
    for shard in (shard for side in sides for shard in side):
        if (shard.shape[1], shard.dtype) != (first.shape[1], first.dtype):
            raise ValueError(
                f"{shard.name} has shape {shard.shape} and dtype {shard.dtype}; expected ({shard.shape[0]}, "
                f"{first.shape[1]}) and {first.dtype}, as {first.name}"
            )


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a shard; of an array in memory, `shard.source` holds these rows."""

    shard: Shard
    rows: Rows

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    def read(self) -> npt.NDArray[Any]:
        """Return the rows, mapped where they are contiguous in a file."""
        if isinstance(self.shard.source, HeldRows):
            return self.shard.source.array[self.shard.source.rows]
        rows: npt.NDArray[Any] = self.shard.open()[self.rows]
        return rows

    def place(self, row: int) -> int:
        """Return the index in the shard of the piece's `row`-th row."""
        return row + self.rows.start if isinstance(self.rows, slice) else int(self.rows[row])

    def narrow(self, rows: npt.NDArray[np.int64]) -> Piece:
        """Return the piece of some of the piece's rows, ascending."""
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
            narrowed: Rows = slice(self.place(int(rows[0])), self.place(int(rows[-1])) + 1)
            if not isinstance(self.rows, slice):
                narrowed = self.rows[rows[0] : rows[-1] + 1]
        else:
            narrowed = rows + self.rows.start if isinstance(self.rows, slice) else self.rows[rows]
        return take(self.shard, narrowed)


def take(shard: Shard, rows: Rows) -> Piece:
    """Return a piece of a shard."""
    array = shard.source.array if isinstance(shard.source, HeldRows) else shard.source
    source = HeldRows(array, rows) if isinstance(array, np.ndarray) else array
    return Piece(replace(shard, source=source), rows)


def read(pieces: Sequence[Piece]) -> npt.NDArray[Any]:
    """Read rows into one array (R, D), in memory."""
    shard = pieces[0].shard
    array = np.empty((sum(map(len, pieces)), shard.shape[1]), shard.dtype)
    start = 0
    for piece in pieces:
        array[start : start + len(piece)] = piece.read()
        start += len(piece)
    return array


def row_digests(x: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return a number per row (R,), which tells a changed row: Σ word_i · w_i modulo 2**64, w_i odd."""
    size = x.shape[1] * x.itemsize
    dtype = next(
        dtype for dtype in (np.uint64, np.uint32, np.uint16, np.uint8) if size % np.dtype(dtype).itemsize == 0
    )
    words = x.view(dtype)
    weights = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
    digests = np.empty(len(x), np.uint64)
    for start in range(0, len(x), _SUMMED):
        part = words[start : start + _SUMMED].astype(np.uint64, copy=False)
        np.einsum("ij,j->i", part, weights, out=digests[start : start + _SUMMED])
    return digests


def name_bad_row(pieces: Sequence[Piece], x: npt.NDArray[Any], similarity: str) -> str | None:
    """Describe the first row that isn't finite, or is zero under the cosine, by its shard; None if all are right."""
    if x.dtype.kind != "f":
        return None
    finite = np.isfinite(x).all(axis=1)
    bad = ~finite
    if similarity == "cosine":
        bad |= ~x.any(axis=1)
    if not bad.any():
        return None
    at = row = int(np.argmax(bad))
    for piece in pieces:
        if row < len(piece):
            break
        row -= len(piece)
    name = f"{piece.shard.name} row {piece.place(row)}"
    if not finite[at]:
        return f"{name} holds NaN or infinity; expected finite numbers: drop or repair it"
    return f"{name} is all zeros, where no cosine is defined; drop it, or use similarity='dot' or 'euclidean'"
