"""Conversion of tensors, columns, blocks and lists to numpy arrays, without importing their libraries.

A container is known by its protocol: `__array__`, `__dlpack__`, `__arrow_c_array__`, `to_numpy`, or iteration.
Functions return the array, or raise a TypeError or ValueError that names the argument and the remedy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import containers

_UNREADABLE = (ValueError, TypeError, RuntimeError, BufferError, AttributeError)
_PROTOCOLS = (
    "__array__", "__array_interface__", "__dlpack__", "__arrow_c_array__", "__arrow_c_stream__", "to_numpy",
)  # fmt: skip
_FAMILIES = {"i": "integers", "u": "integers", "b": "integers", "U": "text", "O": "text", "T": "text"}
_GROWTH = 1.25


def to_array(x: object, name: str, ndim: int | None = None) -> npt.NDArray[Any]:
    """Convert to an array, in place where numpy can read the memory.

    Copied are tensors on other devices, dtypes that numpy lacks (to float32), lists, and columns of variable lists. If
    the number of dimensions is expected (2 for a matrix, 1 for labels), lists of arrays are blocks, and a matrix may
    come as a column of rows.
    """
    if isinstance(x, (str, os.PathLike)):
        raise TypeError(
            f"{name} is the path {str(x)!r}; expected an array: use numpy.load({str(x)!r}, mmap_mode='r')"
        )
    if np.ma.is_masked(x):
        raise TypeError(f"{name} has masked entries; expected an unmasked array: drop or fill those rows")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return containers.from_torch(x, name)
    if _is_blocks(x, ndim):
        return _join_blocks(x, name, ndim)
    if ndim == 2 and containers.is_fixed_size_list(x):
        return containers.stack_fixed_size_list(x, name)
    array = containers.widen(_read(x, name))
    if array.dtype.kind == "O" and array.ndim == 0:
        raise TypeError(
            f"{name} is a {type(x).__name__}; expected an array, a tensor, a column of a table, a list, or an iterator "
            "of blocks"
        )
    return containers.stack_rows(array, name) if ndim == 2 and array.dtype.kind == "O" else array


def to_labels(x: object, name: str) -> npt.NDArray[Any]:
    """Convert labels to an array that merges no two different ones: the strings of a list stay apart from its numbers.

    An array of objects, as pandas, polars and Arrow make of a column of text, becomes one of strings or integers.
    """
    array = to_array(x, name, 1)
    if array.dtype.kind in "US" and not hasattr(x, "__array__") and not _is_blocks(x, 1):
        entries: list[Any] = list(x)  # type: ignore[call-overload]  # numpy has read it as a sequence
        # numpy turns the numbers of a list with a string into strings, [1, "1"] into two equal ones.
        expected = str if array.dtype.kind == "U" else bytes
        _check_entries(entries, f"{name} is a {type(x).__name__}", name, expected)
        array = _keep_final_nuls(array, entries, name)
    if array.dtype.kind == "f" and array.ndim == 1 and np.isnan(array).any():
        # Tables turn a column of integers with a missing one into floats.
        _raise_missing(int(np.isnan(array).argmax()), name)
    if array.dtype.kind != "O" or array.ndim != 1:
        return array
    entries = [entry.item() if isinstance(entry, np.integer) else entry for entry in array.tolist()]
    of_integers = bool(entries) and type(entries[0]) is int
    _check_entries(entries, f"{name} has dtype object", name, int if of_integers else str)
    if not of_integers:
        return _strings(entries, name)
    try:
        return np.array(entries, np.int64 if max(entries) < 2**63 else np.uint64)
    except OverflowError as error:
        raise ValueError(
            f"{name} has integers from {min(entries)} to {max(entries)}; expected numbers of 64 bits, or strings: use "
            f"[str(label) for label in {name}]"
        ) from error


def _read(x: Any, name: str) -> npt.NDArray[Any]:
    """Read an object by the first of its protocols that works."""
    if not hasattr(x, "__array__"):
        if hasattr(x, "__dlpack__"):
            return containers.from_dlpack(x, name)
        if hasattr(x, "__arrow_c_array__") or hasattr(x, "__arrow_c_stream__"):
            return containers.from_arrow(x, name)
        if hasattr(x, "to_numpy"):
            return np.asarray(x.to_numpy())
    try:
        array = np.asarray(x)
        # numpy's strings have no NUL at their end; polars' to_numpy keeps it, in an array of objects.
        return np.asarray(x.to_numpy()) if array.dtype.kind == "U" and hasattr(x, "to_numpy") else array
    except _UNREADABLE as error:
        # Libraries of other devices refuse an implicit copy, and offer an explicit one.
        if hasattr(x, "__dlpack__"):
            return containers.from_dlpack(x, name)
        if hasattr(x, "to_numpy"):
            return np.asarray(x.to_numpy())
        raise TypeError(f"{name} is a {type(x).__name__}, which numpy can't read: {error}") from error


def _check_entries(entries: list[Any], what: str, name: str, expected: type) -> None:
    for place, entry in enumerate(entries):
        if isinstance(entry, expected) and not (expected is int and isinstance(entry, bool)):
            continue
        if entry is None or type(entry).__name__ == "NAType" or (isinstance(entry, float) and entry != entry):
            _raise_missing(place, name)
        raise TypeError(
            f"{what} whose entry {place} is {entry!r}, of type {type(entry).__name__}; expected entries of type "
            f"{expected.__name__}, or an array of integers or booleans: use numpy.array([str(label) for label in "
            f"{name}]), or numpy.asarray({name}).astype(int) if all are integers"
        )


def _raise_missing(place: int, name: str) -> None:
    raise ValueError(f"{name} has a missing value at index {place}; expected a label per item: drop the rows")


def _keep_final_nuls(array: npt.NDArray[Any], entries: list[Any], name: str) -> npt.NDArray[Any]:
    """Return an array that keeps NULs at the end of entries, which numpy's fixed-length strings and bytes drop."""
    if array.dtype.kind == "U":
        return _strings(entries, name) if any(entry.endswith("\0") for entry in entries) else array
    ends = [place for place, entry in enumerate(entries) if entry.endswith(b"\0")]
    if ends:
        raise ValueError(
            f"{name} has the bytes {entries[ends[0]]!r} at index {ends[0]}, whose NUL at the end numpy drops; expected "
            f"bytes without it, or text: use [label.hex() for label in {name}]"
        )
    return array


def _strings(entries: list[str], name: str) -> npt.NDArray[Any]:
    if not hasattr(np.dtypes, "StringDType"):  # numpy 1; its strings have the length of the longest
        if any(entry.endswith("\0") for entry in entries):
            raise ValueError(f"{name} has a string that ends in NUL, which numpy 1 drops; use numpy 2")
        return np.array(entries, dtype=np.str_)
    try:
        # str() of a numpy string drops the NULs, too.
        return np.array([str.__str__(entry) for entry in entries], dtype=np.dtypes.StringDType())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has the string {error.object!r}, which isn't valid Unicode ({error.reason}); expected text"
        ) from error


def concatenate_blocks(blocks: Iterable[Any]) -> Any:
    """Concatenate blocks of embeddings, or of several arrays, such as ``(embeddings, labels)``, to as many arrays.

    For ``evaluate(*concatenate_blocks((model(x), y) for x, y in loader))``. Each block is copied as it comes, so memory
    holds the result and one block. A block may be anything that `evaluate` takes, such as a tensor on an accelerator.

    Args:
        blocks: (n_i, D) arrays, or tuples of such an array and others with n_i entries; n_i may differ.

    Raises:
        TypeError: if the blocks differ in the kind of their entries.
        ValueError: if there are no blocks, or they differ in width or in the number of arrays.
    """
    columns: list[_GrownArray] = []
    several = False
    for place, block in enumerate(blocks):
        arrays = tuple(block) if _holds_arrays(block) else (block,)
        if place == 0:
            several = _holds_arrays(block)
            columns = [_GrownArray("the embeddings", 2)]
            columns += [_GrownArray(f"array {i}", 1) for i in range(1, len(arrays))]
        if len(arrays) != len(columns) or _holds_arrays(block) != several:
            raise ValueError(f"block {place} holds {len(arrays)} arrays; expected {len(columns)}, as block 0")
        sizes = [column.append(array) for column, array in zip(columns, arrays, strict=True)]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"block {place} holds arrays of {', '.join(map(str, sizes))} entries; expected as many of each"
            )
    if not columns:
        raise ValueError("blocks is empty; expected at least one block")
    found = tuple(column.finish() for column in columns)
    return found if several else found[0]


def _is_blocks(x: object, ndim: int | None) -> bool:
    """Whether this is an iterable without array protocol, or, if `ndim` isn't None, a list of arrays."""
    if isinstance(x, (list, tuple)):
        # numpy stacks its own rows faster.
        return ndim is not None and _depth(x) >= 1 and (_depth(x) >= ndim or not isinstance(x[0], np.ndarray))
    if isinstance(x, (str, bytes, dict, set, frozenset, range)) or hasattr(x, "__getitem__"):
        return False
    return isinstance(x, Iterable) and not any(hasattr(x, protocol) for protocol in _PROTOCOLS)


def _depth(x: Any) -> int:
    """Return the number of dimensions of the first entry: 0 if it is no array, 1 for a column or if it isn't known."""
    first = x[0] if x else None
    depth = getattr(first, "ndim", None)
    return depth if isinstance(depth, int) else int(any(hasattr(first, protocol) for protocol in _PROTOCOLS))


def _holds_arrays(block: object) -> bool:
    """Whether a block is several arrays, such as embeddings and labels."""
    return isinstance(block, (list, tuple)) and _depth(block) >= 1


def _join_blocks(x: Any, name: str, ndim: int | None) -> npt.NDArray[Any]:
    """Concatenate an iterable's blocks; single entries, such as a generator of strings, are taken as a list."""
    blocks: Iterator[Any] = iter(x)
    grown = _GrownArray(name, ndim)
    for place, block in enumerate(blocks):
        if place == 0 and ndim != 2 and (isinstance(block, (str, bytes)) or np.ndim(block) == 0):
            return grown.convert([block, *blocks], name)
        if _holds_arrays(block) and (ndim == 1 or _depth(block) > 1):
            raise TypeError(
                f"{name} has blocks of {len(block)} arrays; expected one array a block: for blocks of "
                "embeddings and labels use evaluate(*concatenate_blocks(blocks))"
            )
        grown.append(block)
    if grown.parts == 0:
        raise ValueError(f"{name} is a {type(x).__name__} without blocks; expected at least one")
    return grown.finish()


class _GrownArray:
    """An array that grows by blocks of rows or of labels, and moves no memory where the system can remap it."""

    def __init__(self, name: str, ndim: int | None) -> None:
        self._name, self._ndim = name, ndim
        self._array: npt.NDArray[Any] = np.zeros(0)
        self._length = self.parts = 0

    def convert(self, block: Any, name: str) -> npt.NDArray[Any]:
        """Convert a block."""
        return to_labels(block, name) if self._ndim == 1 else to_array(block, name, self._ndim)

    def append(self, block: Any) -> int:
        """Copy a block to the end, and return its length."""
        name = f"block {self.parts} of {self._name}"
        array = self.convert(block, name)
        if array.dtype.kind == "T":  # whose arrays can't grow in place
            array = array.astype(object)
        if self._ndim == 2 and array.ndim == 1:
            array = array[None]
        if array.ndim == 0:
            raise ValueError(f"{name} is a single entry; expected an array")
        if self.parts == 0:
            self._array = np.empty(array.shape, array.dtype)
        old = self._array
        if array.shape[1:] != old.shape[1:]:
            expected = ", ".join(["n", *map(str, old.shape[1:])])
            raise ValueError(f"{name} has shape {array.shape}; expected ({expected}), as block 0")
        families = {_FAMILIES.get(each.dtype.kind, each.dtype.kind) for each in (array, old)}
        dtype = np.result_type(old.dtype, array.dtype)
        # int64 and uint64 become float64, which merges large ids.
        if len(families) > 1 or dtype.kind not in (old.dtype.kind, array.dtype.kind):
            raise TypeError(f"{name} has dtype {array.dtype}; expected {old.dtype}, as block 0")
        if dtype != old.dtype:
            self._array = old.astype(dtype)
        needed = self._length + len(array)
        if needed > len(self._array):
            capacity = max(needed, int(_GROWTH * len(self._array)))
            self._array.resize((capacity, *self._array.shape[1:]), refcheck=False)
        self._array[self._length : needed] = array
        self._length = needed
        self.parts += 1
        return len(array)

    def finish(self) -> npt.NDArray[Any]:
        """Return the array, without the room at its end."""
        self._array.resize((self._length, *self._array.shape[1:]), refcheck=False)
        return self._array
