"""Paths in one block of memory, for splits of millions of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np


class PathTable(Sequence[Path]):
    """A sequence of paths that takes their characters and 8 bytes each.

    A list of as many `Path` objects takes some 400 bytes each, in every loader process, and seconds to send there.

    Args:
        paths: the paths, in order.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._bytes = b"".join(encoded)
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of paths."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Path: ...

    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...

    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        """Return one path, or a list of some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # an IndexError where a list raises one
        begin = int(self._ends[place - 1]) if place else 0
        return Path(os.fsdecode(self._bytes[begin : int(self._ends[place])]))

    def __eq__(self, other: object) -> bool:
        """Whether `other` holds the same paths in the same order."""
        if not isinstance(other, PathTable):
            return NotImplemented
        return self._bytes == other._bytes and np.array_equal(self._ends, other._ends)

    __hash__ = None  # type: ignore[assignment]
