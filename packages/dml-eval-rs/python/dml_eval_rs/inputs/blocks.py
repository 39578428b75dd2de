"""Arrays that come in blocks: from a generator, a data loader, or a list of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_FAMILIES = {"i": "integers", "u": "integers", "b": "integers", "U": "text", "O": "text", "T": "text"}
_GROWTH = 1.25
_PROTOCOLS = (
    "__array__", "__array_interface__", "__dlpack__", "__arrow_c_array__", "__arrow_c_stream__", "to_numpy",
)  # fmt: skip


def is_blocks(x: object, ndim: int | None) -> bool:
    """Whether this is an iterator or other iterable without array protocol, or a list of arrays.

    Args:
        x: anything.
        ndim: the dimensions of the whole, 2 or 1; None if a list isn't taken for one of blocks.
    """
    if isinstance(x, (list, tuple)):
        # numpy stacks its own rows faster.
        return ndim is not None and _depth(x) >= 1 and (_depth(x) >= ndim or not isinstance(x[0], np.ndarray))
    if isinstance(x, (str, bytes, dict, set, frozenset, range)) or hasattr(x, "__getitem__"):
        return False
    return isinstance(x, Iterable) and not any(hasattr(x, protocol) for protocol in _PROTOCOLS)


def join_blocks(
    x: Any, name: str, to_array: Callable[..., npt.NDArray[Any]], ndim: int | None
) -> npt.NDArray[Any]:
    """Concatenate an iterable's blocks; single entries, such as a generator of strings, are taken as a list.

    Args:
        x: the iterable.
        name: the argument's name in errors.
        to_array: converts a block.
        ndim: the dimensions of the whole; 2: one-dimensional blocks are its rows.
    """
    blocks: Iterator[Any] = iter(x)
    grown = GrownArray(name, to_array, ndim)
    for place, block in enumerate(blocks):
        if place == 0 and ndim != 2 and (isinstance(block, (str, bytes)) or np.ndim(block) == 0):
            return to_array([block, *blocks], name, ndim)
        if holds_arrays(block) and (ndim == 1 or _depth(block) > 1):
            raise TypeError(
                f"{name} has blocks of {len(block)} arrays; expected one array a block: for blocks of "
                "embeddings and labels use evaluate(*concatenate_blocks(blocks))"
            )
        grown.append(block)
    if grown.parts == 0:
        raise ValueError(f"{name} is a {type(x).__name__} without blocks; expected at least one")
    return grown.finish()


def _depth(x: Any) -> int:
    """Return the number of dimensions of the first entry: 0 if it is no array, 1 for a column or if it isn't known."""
    first = x[0] if x else None
    depth = getattr(first, "ndim", None)
    return depth if isinstance(depth, int) else int(any(hasattr(first, protocol) for protocol in _PROTOCOLS))


def holds_arrays(block: object) -> bool:
    """Whether a block is several arrays, such as embeddings and labels."""
    return isinstance(block, (list, tuple)) and _depth(block) >= 1


class GrownArray:
    """An array that grows by blocks. Growing moves no memory where the system can remap it."""

    def __init__(self, name: str, to_array: Callable[..., npt.NDArray[Any]], ndim: int | None = None) -> None:
        self._name, self._to_array, self._ndim = name, to_array, ndim
        self._array: npt.NDArray[Any] = np.zeros(0)
        self.length = self.parts = self.last = 0

    def append(self, block: Any) -> None:
        """Copy a block to the end."""
        name = f"block {self.parts} of {self._name}"
        array = self._to_array(block, name, self._ndim)
        if array.dtype.kind == "T":  # whose arrays can't grow in place
            array = array.astype(object)
        if self._ndim == 2 and array.ndim == 1:
            array = array[None]
        if array.ndim == 0:
            raise ValueError(f"{name} is a single entry; expected an array")
        if self.parts == 0:
            self._array = np.empty(array.shape, array.dtype)
        self._check(array, name)
        dtype = np.result_type(self._array.dtype, array.dtype)
        if dtype.kind not in (self._array.dtype.kind, array.dtype.kind):  # int64 and uint64 become float64
            raise TypeError(f"{name} has dtype {array.dtype}; expected {self._array.dtype}, as before")
        if dtype != self._array.dtype:
            self._array = self._array.astype(dtype)
        needed = self.length + len(array)
        if needed > len(self._array):
            capacity = max(needed, int(_GROWTH * len(self._array)))
            self._array.resize((capacity, *self._array.shape[1:]), refcheck=False)
        self._array[self.length : needed] = array
        self.length, self.last = needed, len(array)
        self.parts += 1

    def finish(self) -> npt.NDArray[Any]:
        """Return the array, without the room at its end."""
        self._array.resize((self.length, *self._array.shape[1:]), refcheck=False)
        return self._array

    def _check(self, array: npt.NDArray[Any], name: str) -> None:
        if array.shape[1:] != self._array.shape[1:]:
            expected = ", ".join(["n", *map(str, self._array.shape[1:])])
            raise ValueError(f"{name} has shape {array.shape}; expected ({expected}), as block 0")
        kinds = [_FAMILIES.get(each.dtype.kind, each.dtype.kind) for each in (array, self._array)]
        if kinds[0] != kinds[1]:
            raise TypeError(f"{name} has dtype {array.dtype}; expected {self._array.dtype}, as block 0")
