"""Columns of tables whose entries are rows of numbers: Arrow's fixed-size lists, and arrays of objects."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt


def is_fixed_size_list(x: Any) -> bool:
    """Whether this is an array or chunked array of Arrow's type FixedSizeList, or of a tensor of that storage."""
    kind = getattr(x, "type", None)
    return hasattr(getattr(kind, "storage_type", kind), "list_size")


def stack_fixed_size_list(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert Arrow's fixed-size lists to a matrix: in place if they are one chunk."""
    if x.null_count:
        missing = np.flatnonzero(np.asarray(x.is_null()))
        raise ValueError(f"{name} has a missing row at index {missing[0]}; expected numbers: drop those rows")
    chunks = [getattr(chunk, "storage", chunk) for chunk in getattr(x, "chunks", [x])]
    kind = getattr(x.type, "storage_type", x.type)
    width = kind.list_size
    for chunk in chunks:
        values = chunk.flatten()
        if values.null_count:
            place = int(np.flatnonzero(np.asarray(values.is_null()))[0]) // width
            raise ValueError(f"{name} has a missing number in row {place} of a chunk; expected numbers")
    if len(chunks) == 1:
        return _matrix(chunks[0], width)
    matrix = np.empty((len(x), width), kind.value_type.to_pandas_dtype())
    start = 0
    for chunk in chunks:
        matrix[start : start + len(chunk)] = _matrix(chunk, width)
        start += len(chunk)
    return matrix


def _matrix(chunk: Any, width: int) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = chunk.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(chunk), width)


def stack_rows(column: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Copy a column whose entries are lists or arrays of numbers into a matrix; return another column as it is.

    Raises:
        TypeError: if the entries are no rows.
        ValueError: naming the first row that is missing or has another length than row 0.
    """
    entries = column.reshape(-1) if column.ndim == 1 or column.shape[1:] == (1,) else column[:0]
    if len(entries) == 0:
        return column
    first = np.asarray(entries[0])
    if first.ndim != 1 or first.dtype.kind not in "iufb":
        raise TypeError(
            f"{name} has dtype object whose entry 0 is a {type(entries[0]).__name__}; expected rows of numbers"
        )
    matrix = np.empty((len(entries), len(first)), first.dtype)
    for place, entry in enumerate(entries):
        if entry is None or np.ndim(entry) == 0:
            raise ValueError(f"{name} has a missing row at index {place}; expected numbers: drop those rows")
        row = np.asarray(entry)
        if row.shape != first.shape:
            raise ValueError(f"{name} has row {place} of length {len(row)}; expected {len(first)}, as row 0")
        if not np.can_cast(row.dtype, first.dtype, "same_kind"):
            raise TypeError(f"{name} has row {place} of dtype {row.dtype}; expected {first.dtype}, as row 0")
        matrix[place] = row
    return matrix


def from_arrow(x: Any, name: str) -> npt.NDArray[Any]:
    """Read an object that has Arrow's protocol alone, by a library that is loaded already."""
    pyarrow, polars = sys.modules.get("pyarrow"), sys.modules.get("polars")
    if pyarrow is not None:
        array = pyarrow.array(x) if hasattr(x, "__arrow_c_array__") else pyarrow.chunked_array(x)
        return stack_fixed_size_list(array, name) if is_fixed_size_list(array) else np.asarray(array)
    if polars is not None:
        return np.asarray(polars.Series(x))
    raise TypeError(
        f"{name} is a {type(x).__name__}, which has Arrow's protocol alone; expected an array: "
        f"import pyarrow or polars first, or pass pyarrow.array({name})"
    )
