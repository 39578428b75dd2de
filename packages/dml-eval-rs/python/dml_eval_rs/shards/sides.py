"""The rows of one side's shards as one virtual array, in blocks of about equal size.

Shapes: `N` rows of all shards that take part, `B` rows of a block or of a task's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.shards.sources import Piece, Rows, Shard, name_bad_row, read, row_digests, take

Codes = npt.NDArray[np.uint32] | None
Excluded = npt.NDArray[np.int64] | None

_BLOCKS = 4  # of a side, at least, if `block` is None: pairs of blocks for several workers
_LEAST, _MOST = 8_192, 131_072  # rows of a block, if `block` is None


def block_rows(block: int | None, rows: int) -> int:
    """Return the most rows of a block: by default few enough for several workers, and enough that reading is cheap."""
    if block is not None:
        return arguments.positive(block, "block")
    return int(np.clip(-(-rows // _BLOCKS), _LEAST, _MOST))


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that a task reads, and what it must know of them. A block is a part of consecutive rows.

    Attributes:
        pieces: where the rows lie.
        places: (B,) the rows' places in the side, ascending; of a block, the first place.
        labels, groups: (B,) the rows' codes.
        exclude: (B,) the item that each query excludes, or -1.
    """

    pieces: tuple[Piece, ...]
    places: npt.NDArray[np.int64] | int
    labels: Codes = None
    groups: Codes = None
    exclude: Excluded = None

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def rows(self) -> slice:
        """The places of a block's rows in the side."""
        return slice(int(self.places), int(self.places) + len(self))


@dataclass(slots=True)
class Side:
    """All rows of a side that take part, divided into blocks.

    Attributes:
        shards: the side's shards.
        block: the most rows of a block; None to choose.
        kept: the rows that take part; None for all.
        labels, groups, exclude: (N,) as in `Part`.
        blocks: the blocks.
        digests: (N,) of the rows read so far.
        is_read: (N,) which rows those are.
    """

    shards: Sequence[Shard]
    block: int | None
    kept: npt.NDArray[Any] | None = None
    labels: Codes = None
    groups: Codes = None
    exclude: Excluded = None
    blocks: list[Part] = field(init=False)
    digests: npt.NDArray[np.uint64] = field(init=False)
    is_read: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = list(self._divide())
        self.digests = np.zeros(len(self), np.uint64)
        self.is_read = np.zeros(len(self), np.bool_)

    def _divide(self) -> Iterator[Part]:
        shards, kept = self.shards, self.kept
        ends = np.cumsum([shard.shape[0] for shard in shards])
        n = int(ends[-1]) if kept is None else len(kept)
        edges = np.linspace(0, n, -(-n // block_rows(self.block, n)) + 1).astype(np.int64)
        for start, stop in zip(edges.tolist(), edges[1:].tolist()):
            pieces = []
            for shard, end in zip(shards, ends.tolist()):
                begin = end - shard.shape[0]
                if kept is None:
                    low, high = max(start, begin), min(stop, end)
                    if low < high:
                        pieces.append(take(shard, slice(low - begin, high - begin)))
                else:
                    rows = kept[start:stop]
                    rows = rows[(rows >= begin) & (rows < end)].astype(np.int64) - begin
                    if len(rows):
                        pieces.append(take(shard, rows))
            yield Part(tuple(pieces), start, *self._codes(slice(start, stop)))

    def __len__(self) -> int:
        last = self.blocks[-1]
        return int(last.places) + len(last)

    def narrow(self, rows: npt.NDArray[np.int64]) -> Part:
        """Return some rows, ascending, as a task gets them."""
        narrowed, start = [], 0
        for piece in (piece for block in self.blocks for piece in block.pieces):
            low, high = np.searchsorted(rows, (start, start + len(piece)))
            if high > low:
                narrowed.append(piece.narrow(rows[low:high] - start))
            start += len(piece)
        return Part(tuple(narrowed), rows, *self._codes(rows))

    def _codes(self, rows: Rows) -> tuple[Any, Any, Any]:
        of_rows = (None if of is None else of[rows] for of in (self.labels, self.groups, self.exclude))
        return next(of_rows), next(of_rows), next(of_rows)

    def check_digests(self, rows: Rows, digests: npt.NDArray[np.uint64]) -> None:
        """Raise a ValueError that names the first of these rows that another task read differently."""
        differs = self.is_read[rows] & (self.digests[rows] != digests)
        if differs.any():
            at = int(np.argmax(differs))
            row = np.array([at + rows.start if isinstance(rows, slice) else rows[at]])
            piece = self.narrow(row).pieces[0]
            raise ValueError(
                f"{piece.shard.name} row {piece.place(0)} changed between two tasks; expected the same rows for "
                "every task: leave shards unchanged until the end, and give every worker the same files"
            )
        self.digests[rows] = digests
        self.is_read[rows] = True


def compute_on(
    parts: Sequence[Part],
    similarity: str,
    compute: Callable[[npt.NDArray[Any], list[npt.NDArray[Any]]], Sequence[Any]],
) -> list[Any]:
    """Read one or two parts, and return the rows' digests, and then the values of a function of the rows.

    The function gets all rows in one array, and views of each part's rows. If it raises a ValueError, the error names
    the shard of a row that isn't finite, or zero under the cosine.
    """
    items = read([piece for part in parts for piece in part.pieces])
    rows = np.split(items, [len(parts[0])])[: len(parts)]
    try:
        found = compute(items, rows)
    except ValueError as error:
        for part, x in zip(parts, rows):
            bad = name_bad_row(part.pieces, x, similarity)
            if bad is not None:
                raise ValueError(bad) from None
        raise error
    return [[row_digests(x) for x in rows], *found]


def names_of(pieces: Sequence[Piece]) -> str:
    """Name the shards of pieces, for errors."""
    names = list(dict.fromkeys(piece.shard.name for piece in pieces))
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
