"""Arrays of other libraries: tensors, columns whose entries are rows of numbers, and dtypes that numpy lacks."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 22  # numbers converted at a time, so that memory holds the result and one block
_CPU = 1  # of DLPack's devices


def from_torch(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert a torch tensor, without its gradient: in place on the CPU, else by blocks of rows."""
    torch = sys.modules["torch"]
    padded = f"torch.nested.to_padded_tensor({name}, 0.0)"
    refused = (
        (x.is_nested, "a nested tensor", f"a matrix: if all rows have one length, use {padded}"),
        (x.is_meta, "a tensor on meta, which holds no numbers", "one on the CPU or an accelerator"),
        (
            x.layout is not torch.strided,
            f"a tensor of layout {x.layout}",
            f"a dense one: use {name}.to_dense()",
        ),
        (x.is_quantized, "a quantized tensor", f"numbers: use {name}.dequantize()"),
    )
    for is_refused, what, expected in refused:
        if is_refused:
            raise TypeError(f"{name} is {what}; expected {expected}")
    tensor, on_cpu = x.detach(), x.device.type == "cpu"
    # bfloat16 and the 8-bit formats become float32, which has all of their values.
    narrow = x.is_floating_point() and x.dtype not in (torch.float16, torch.float32, torch.float64)
    try:
        if on_cpu:
            # Inside functionalize, a tensor has no memory, and numpy() would read that of others.
            tensor.untyped_storage().data_ptr()
        tensor = tensor.resolve_conj().resolve_neg()
        if on_cpu and not narrow:
            array: npt.NDArray[Any] = tensor.numpy()
            return array
    except TypeError as error:
        raise TypeError(f"{name} has dtype {tensor.dtype}, which numpy lacks; expected numbers") from error
    except RuntimeError as error:
        raise TypeError(
            f"{name} is a tensor without readable numbers ({error}); expected a tensor outside torch.func's "
            "transforms, such as grad and vmap"
        ) from error
    copy = torch.empty(tensor.shape, dtype=torch.float32 if narrow else tensor.dtype, device="cpu")
    for rows in _row_blocks(tuple(tensor.shape)):
        copy[rows].copy_(tensor[rows])
    converted: npt.NDArray[Any] = copy.numpy()
    return converted


def from_dlpack(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert by DLPack: in place on the CPU; the exporter copies from other devices."""
    failures = TypeError, ValueError, RuntimeError, BufferError
    try:
        # numpy before 2.1 can't ask for a copy.
        on_cpu = x.__dlpack_device__()[0] == _CPU
        return np.from_dlpack(x) if on_cpu else np.from_dlpack(x, device="cpu")
    except failures as error:
        torch = sys.modules.get("torch")
        if torch is not None:  # which reads bfloat16 and other devices
            with contextlib.suppress(*failures):
                return from_torch(torch.from_dlpack(x), name)
        raise TypeError(
            f"{name} is a {type(x).__name__}, which numpy can't read by DLPack: {error}; expected numbers on the CPU: "
            f"copy {name} to the CPU as float32"
        ) from error


def widen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert bfloat16 and the smaller floats of ml_dtypes to float32, block by block; return others as they are."""
    dtype = array.dtype
    if dtype.type.__module__ != "ml_dtypes" or not dtype.name.startswith(("bfloat", "float")):
        return array
    wide = np.empty(array.shape, np.float32)
    for rows in _row_blocks(array.shape):
        wide[rows] = array[rows]
    return wide


def _row_blocks(shape: tuple[int, ...]) -> list[Any]:
    """Return indices of consecutive blocks of rows."""
    if len(shape) == 0:
        return [...]
    step = max(1, _BLOCK // max(1, int(np.prod(shape[1:]))))
    return [slice(start, start + step) for start in range(0, shape[0], step)]


def from_arrow(x: Any, name: str) -> npt.NDArray[Any]:
    """Read an object that has only Arrow's protocol, by a library that is loaded already."""
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


def is_fixed_size_list(x: Any) -> bool:
    """Whether this is an array or chunked array of Arrow's type FixedSizeList, or of a tensor of that storage."""
    kind = getattr(x, "type", None)
    return hasattr(getattr(kind, "storage_type", kind), "list_size")


def stack_fixed_size_list(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert Arrow's fixed-size lists to a matrix: in place if they are one chunk."""
    if x.null_count:
        missing = np.flatnonzero(np.asarray(x.is_null()))
        raise ValueError(f"{name} has a missing row at index {missing[0]}; expected numbers: drop those rows")
    chunks = getattr(x, "chunks", [x])
    array = chunks[0] if len(chunks) == 1 else x.combine_chunks()
    array = getattr(array, "storage", array)
    values, width = array.flatten(), array.type.list_size
    if values.null_count:
        place = int(np.flatnonzero(np.asarray(values.is_null()))[0]) // width
        raise ValueError(f"{name} has a missing number in row {place}; expected numbers")
    matrix: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(array), width)
    return matrix


def stack_rows(column: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Copy a column whose entries are lists or arrays of numbers into a matrix; return an empty column as it is."""
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
