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


def concatenate_blocks(blocks: Iterable[Any]) -> Any:
    """Concatenate blocks of embeddings, or blocks of several arrays, such as ``(embeddings, labels)``.

    For ``evaluate(*concatenate_blocks((model(x), y) for x, y in loader))``. Each block is copied as it comes, so memory
    holds the result and one block. A block may be anything that `evaluate` takes, such as a tensor on an accelerator.

    Args:
        blocks: (n_i, D) arrays, or tuples of arrays of which each has n_i entries; n_i may differ.

    Returns:
        The (n, D) array, or a tuple of arrays.

    Raises:
        TypeError: if the blocks differ in the kind of their entries.
        ValueError: if there are no blocks, or they differ in width or in the number of arrays.
    """
    from dml_eval_rs.conversion import to_array  # which imports this module

    columns: list[_Grown] = []
    for place, block in enumerate(blocks):
        arrays = tuple(block) if _holds_arrays(block) else (block,)
        if place == 0:
            several = _holds_arrays(block)
            columns = [
                _Grown(f"array {i} of blocks" if several else "blocks", to_array) for i in range(len(arrays))
            ]
        if len(arrays) != len(columns) or _holds_arrays(block) != several:
            raise ValueError(f"block {place} holds {len(arrays)} arrays; expected {len(columns)}, as block 0")
        for column, array in zip(columns, arrays, strict=True):
            column.append(array)
        if len({column.length for column in columns}) > 1:
            sizes = ", ".join(str(column.last) for column in columns)
            raise ValueError(f"block {place} holds arrays of {sizes} entries; expected as many of each")
    if not columns:
        raise ValueError("blocks is empty; expected at least one block")
    found = tuple(column.finish() for column in columns)
    return found if several else found[0]


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
    grown = _Grown(name, to_array, ndim)
    for place, block in enumerate(blocks):
        if place == 0 and ndim != 2 and (isinstance(block, (str, bytes)) or np.ndim(block) == 0):
            return to_array([block, *blocks], name)
        if _holds_arrays(block) and (ndim == 1 or _depth(block) > 1):
            raise TypeError(
                f"{name} has blocks of {len(block)} arrays; expected one array a block: for blocks of "
                "embeddings and labels use evaluate(*concatenate_blocks(blocks))"
            )
        grown.append(block)
    if grown.parts == 0:
        raise ValueError(f"{name} is a {type(x).__name__} without blocks; expected at least one")
    return grown.finish()


def _depth(x: Any) -> int:
    """Return the number of dimensions of the first entry, 0 if it is no array."""
    depth = getattr(x[0], "ndim", 0) if x else 0
    return depth if isinstance(depth, int) else 0


def _holds_arrays(block: object) -> bool:
    return isinstance(block, (list, tuple)) and _depth(block) >= 1


class _Grown:
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
