"""The rows of all shards of one side as one array that nobody holds, in blocks of about equal size.

Shapes: `N` rows of all shards that take part, `B` of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.shards.sources import Piece, Rows, Shard, take

_BLOCKS = 4  # of a side, at least, if `block` is None: pairs of blocks for several workers
_LEAST, _MOST = 8_192, 131_072  # rows of a block, if `block` is None


def default_block(rows: int) -> int:
    """Choose the rows of a block: few enough for several workers, enough that reading them costs little."""
    return int(np.clip(-(-rows // _BLOCKS), _LEAST, _MOST))


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a side, as a task gets them.

    Attributes:
        number: of the block.
        start, stop: its rows in the side.
        pieces: where they lie.
    """

    number: int
    start: int
    stop: int
    pieces: tuple[Piece, ...]

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> slice:
        """Return its rows in the side."""
        return slice(self.start, self.stop)


@dataclass(slots=True)
class Side:
    """All rows of a side that take part, and the digests of those that were read.

    Attributes:
        shards: its shards.
        blocks: its blocks.
        digests: (N,) of the rows read so far.
        is_read: (N,) which rows those are.
    """

    shards: Sequence[Shard]
    blocks: list[Block]
    digests: npt.NDArray[np.uint64] = field(init=False)
    is_read: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.digests = np.zeros(len(self), np.uint64)
        self.is_read = np.zeros(len(self), np.bool_)

    @classmethod
    def divide(cls, shards: Sequence[Shard], kept: npt.NDArray[Any] | None, block: int) -> Side:
        """Divide the rows of shards, or the kept ones of them, into blocks of at most `block` rows."""
        ends = np.cumsum([shard.shape[0] for shard in shards])
        n = int(ends[-1]) if kept is None else len(kept)
        edges = np.linspace(0, n, -(-n // block) + 1).astype(np.int64)
        blocks = []
        for number, (start, stop) in enumerate(zip(edges.tolist(), edges[1:].tolist())):
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
            blocks.append(Block(number, start, stop, tuple(pieces)))
        return cls(shards, blocks)

    def __len__(self) -> int:
        return self.blocks[-1].stop

    def narrow(self, rows: npt.NDArray[np.int64]) -> tuple[Piece, ...]:
        """Return the pieces of these rows, ascending."""
        narrowed = []
        start = 0
        for piece in (piece for block in self.blocks for piece in block.pieces):
            low, high = np.searchsorted(rows, (start, start + len(piece)))
            if high > low:
                narrowed.append(piece.narrow(rows[low:high] - start))
            start += len(piece)
        return tuple(narrowed)

    def check_digests(self, rows: Rows, digests: npt.NDArray[np.uint64]) -> None:
        """Check that these rows hold what they held when they were read before.

        Raises:
            ValueError: naming the first that doesn't.
        """
        differs = self.is_read[rows] & (self.digests[rows] != digests)
        if differs.any():
            at = int(np.argmax(differs))
            row = np.array([at + rows.start if isinstance(rows, slice) else rows[at]])
            piece = self.narrow(row)[0]
            raise ValueError(
                f"{piece.shard.name} row {piece.place(0)} changed between two tasks; expected the same rows for "
                "every task: leave shards unchanged until the end, and give every worker the same files"
            )
        self.digests[rows] = digests
        self.is_read[rows] = True


def names_of(pieces: Sequence[Piece]) -> str:
    """Name the shards of pieces, for errors."""
    names = list(dict.fromkeys(piece.shard.name for piece in pieces))
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
