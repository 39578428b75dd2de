"""Conversion of what users hold (torch tensors, columns of tables, lists) to numpy arrays, without those libraries.

Functions return the array, or raise a TypeError or ValueError that names the argument and the remedy.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt


def to_array(x: object, name: str) -> npt.NDArray[Any]:
    """Convert to an array; only a tensor of a floating dtype that numpy lacks is copied, to float32."""
    if np.ma.is_masked(x):
        raise TypeError(
            f"{name} has masked entries; expected an unmasked array: drop those rows, or fill them"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_tensor(x, name)
    try:
        return np.asarray(x)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TypeError(
            f"{name} is a {type(x).__name__}, which numpy can't read as an array: {error}"
        ) from error


def to_labels(x: object, name: str) -> npt.NDArray[Any]:
    """Convert labels to an array that merges no two different ones: the strings of a list stay apart from its numbers.

    An array of objects, as pandas, polars and Arrow make of a column of text, becomes one of strings.
    """
    array = to_array(x, name)
    if array.dtype.kind in "US" and not hasattr(x, "__array__"):
        # numpy turns the numbers of a list with a string into strings, [1, "1"] into two equal ones.
        expected = str if array.dtype.kind == "U" else bytes
        _check_entries(list(x), f"{name} is a {type(x).__name__}", name, expected)  # type: ignore[call-overload]
    if array.dtype.kind != "O" or array.ndim != 1:
        return array
    entries = array.tolist()
    _check_entries(entries, f"{name} has dtype object", name, str)
    return _strings(entries, name)


def _check_entries(entries: list[Any], what: str, name: str, expected: type) -> None:
    for place, entry in enumerate(entries):
        if isinstance(entry, expected):
            continue
        if entry is None or type(entry).__name__ == "NAType" or (isinstance(entry, float) and entry != entry):
            raise ValueError(
                f"{name} has a missing value at index {place}; expected a label for every item: drop those rows"
            )
        raise TypeError(
            f"{what} whose entry {place} is {entry!r}, of type {type(entry).__name__}; expected entries of type "
            f"{expected.__name__}, or an array of integers or booleans: use numpy.array([str(label) for label in "
            f"{name}]), or numpy.asarray({name}).astype(int) if all are integers"
        )


def _strings(entries: list[str], name: str) -> npt.NDArray[Any]:
    if not hasattr(np.dtypes, "StringDType"):  # numpy 1; its strings have the length of the longest
        if any(entry.endswith("\0") for entry in entries):
            raise ValueError(f"{name} has a string that ends in NUL, which numpy 1 drops; use numpy 2")
        return np.array(entries, dtype=np.str_)
    try:
        return np.array(entries, dtype=np.dtypes.StringDType())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has the string {error.object!r}, which isn't valid Unicode ({error.reason}); expected text"
        ) from error


def _from_tensor(x: Any, name: str) -> npt.NDArray[Any]:
    tensor = x.detach()
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} is a tensor on {tensor.device}; expected one on the CPU: use {name}.cpu()")
    if str(tensor.layout) != "torch.strided":
        raise TypeError(
            f"{name} is a tensor of layout {tensor.layout}; expected a dense one: use {name}.to_dense()"
        )
    if tensor.is_quantized:
        raise TypeError(f"{name} is a quantized tensor; expected numbers: use {name}.dequantize()")
    tensor = tensor.resolve_conj().resolve_neg()
    try:
        array: npt.NDArray[Any] = tensor.numpy()
    except TypeError:  # bfloat16 and the 8-bit formats, all of whose values float32 has
        array = tensor.float().numpy()
    return array
