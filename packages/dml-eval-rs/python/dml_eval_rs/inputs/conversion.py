"""Conversion of tensors, columns, blocks and lists to numpy arrays, without importing their libraries.

A container is known by its protocol: `__array__`, `__dlpack__`, `__arrow_c_array__`, `to_numpy`, or iteration.
Functions return the array, or raise a TypeError or ValueError that names the argument and the remedy.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.blocks import is_blocks, join_blocks
from dml_eval_rs.inputs.columns import from_arrow, is_fixed_size_list, stack_fixed_size_list, stack_rows
from dml_eval_rs.inputs.tensors import from_dlpack, from_torch, widen

_UNREADABLE = (ValueError, TypeError, RuntimeError, BufferError, AttributeError)


def to_array(x: object, name: str, ndim: int | None = None) -> npt.NDArray[Any]:
    """Convert to an array, in place where numpy can read the memory.

    Copied are tensors on other devices, dtypes that numpy lacks (to float32), lists, and columns of variable lists.

    Args:
        x: the container.
        name: the argument's name in errors.
        ndim: the expected number of dimensions, by which lists of arrays are known as blocks: 2 for a matrix, whose
            entries may also be rows, 1 for labels. None: any, and lists are as numpy takes them.
    """
    if isinstance(x, (str, os.PathLike)):
        raise TypeError(
            f"{name} is the path {str(x)!r}; expected an array: use numpy.load({str(x)!r}, mmap_mode='r')"
        )
    if np.ma.is_masked(x):
        raise TypeError(
            f"{name} has masked entries; expected an unmasked array: drop those rows, or fill them"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return from_torch(x, name)
    if is_blocks(x, ndim):
        return join_blocks(x, name, to_label_block if ndim == 1 else to_array, ndim)
    if ndim == 2 and is_fixed_size_list(x):
        return stack_fixed_size_list(x, name)
    array = widen(_read(x, name))
    if array.dtype.kind == "O" and array.ndim == 0:
        raise TypeError(
            f"{name} is a {type(x).__name__}; expected an array, a tensor, a column of a table, a list, or an iterator "
            "of blocks"
        )
    return stack_rows(array, name) if ndim == 2 and array.dtype.kind == "O" else array


def to_labels(x: object, name: str) -> npt.NDArray[Any]:
    """Convert labels to an array that merges no two different ones: the strings of a list stay apart from its numbers.

    An array of objects, as pandas, polars and Arrow make of a column of text, becomes one of strings or integers.
    """
    array = to_array(x, name, 1)
    if array.dtype.kind in "US" and not hasattr(x, "__array__") and not is_blocks(x, 1):
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
    if entries and type(entries[0]) is int:
        _check_entries(entries, f"{name} has dtype object", name, int)
        return _integers(entries, name)
    _check_entries(entries, f"{name} has dtype object", name, str)
    return _strings(entries, name)


def to_label_block(x: object, name: str, _ndim: int | None = None) -> npt.NDArray[Any]:
    """Convert a block of labels, or of an array beside the embeddings, with the checks of `to_labels`."""
    return to_labels(x, name)


def _read(x: Any, name: str) -> npt.NDArray[Any]:
    """Read an object by the first of its protocols that works."""
    if not hasattr(x, "__array__"):
        if hasattr(x, "__dlpack__"):
            return from_dlpack(x, name)
        if hasattr(x, "__arrow_c_array__") or hasattr(x, "__arrow_c_stream__"):
            return from_arrow(x, name)
        if hasattr(x, "to_numpy"):
            return np.asarray(x.to_numpy())
    try:
        array = np.asarray(x)
        # numpy's strings have no NUL at their end; polars' to_numpy keeps it, in an array of objects.
        return np.asarray(x.to_numpy()) if array.dtype.kind == "U" and hasattr(x, "to_numpy") else array
    except _UNREADABLE as error:
        # Libraries of other devices refuse an implicit copy, and offer an explicit one.
        if hasattr(x, "__dlpack__"):
            return from_dlpack(x, name)
        if hasattr(x, "to_numpy"):
            return np.asarray(x.to_numpy())
        raise TypeError(
            f"{name} is a {type(x).__name__}, which numpy can't read as an array: {error}"
        ) from error


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
    raise ValueError(
        f"{name} has a missing value at index {place}; expected a label for every item: drop those rows"
    )


def _integers(entries: list[int], name: str) -> npt.NDArray[Any]:
    try:
        return np.array(entries, np.int64 if max(entries) < 2**63 else np.uint64)
    except OverflowError as error:
        raise ValueError(
            f"{name} has integers from {min(entries)} to {max(entries)}; expected numbers of 64 bits, or strings: use "
            f"[str(label) for label in {name}]"
        ) from error


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
