"""Tensors as numpy arrays: torch's, those of other libraries by DLPack, and the floating dtypes that numpy lacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 22  # numbers converted at a time, so that memory holds the result and one block
_CPU = 1  # of DLPack's devices


def from_torch(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert a torch tensor, without its gradient: in place on the CPU, else by blocks of rows.

    bfloat16 and the 8-bit formats, all of whose values float32 has, become float32.
    """
    torch = sys.modules["torch"]
    if x.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; expected a matrix: if all rows have one length, use "
            f"torch.nested.to_padded_tensor({name}, 0.0)"
        )
    tensor = x.detach()
    if tensor.is_meta:
        raise TypeError(
            f"{name} is a tensor on meta, which holds no numbers; expected one on the CPU or an accelerator"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{name} is a tensor of layout {tensor.layout}; expected a dense one: use {name}.to_dense()"
        )
    if tensor.is_quantized:
        raise TypeError(f"{name} is a quantized tensor; expected numbers: use {name}.dequantize()")
    if tensor.device.type == "cpu":
        try:
            # Inside functionalize, a tensor has no memory, and numpy() would read that of others.
            tensor.untyped_storage().data_ptr()
        except RuntimeError as error:
            raise _unreadable(name, error) from error
    tensor = tensor.resolve_conj().resolve_neg()
    narrow = tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64)
    if tensor.device.type == "cpu" and not narrow:
        try:
            array: npt.NDArray[Any] = tensor.numpy()
        except TypeError as error:
            raise TypeError(
                f"{name} has dtype {tensor.dtype}, which numpy lacks; expected numbers"
            ) from error
        except RuntimeError as error:
            raise _unreadable(name, error) from error
        return array
    copy = torch.empty(tensor.shape, dtype=torch.float32 if narrow else tensor.dtype, device="cpu")
    for rows in _row_blocks(tuple(tensor.shape)):
        copy[rows].copy_(tensor[rows])
    converted: npt.NDArray[Any] = copy.numpy()
    return converted


def _unreadable(name: str, error: Exception) -> TypeError:
    return TypeError(
        f"{name} is a tensor without readable numbers ({error}); expected a tensor outside torch.func's transforms, "
        "such as grad and vmap"
    )


def from_dlpack(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert by DLPack: in place on the CPU; the exporter copies from other devices."""
    torch = sys.modules.get("torch")
    # torch reads bfloat16 and other devices; numpy before 2.1 can't ask for a copy.
    readers: list[Callable[[], npt.NDArray[Any]]] = [lambda: _numpy_from_dlpack(x)]
    if torch is not None:
        readers.append(lambda: from_torch(torch.from_dlpack(x), name))
    errors = []
    for read in readers:
        try:
            return read()
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            errors.append(error)
    raise TypeError(
        f"{name} is a {type(x).__name__}, which numpy can't read by DLPack: {errors[0]}; expected numbers on the CPU: "
        f"copy {name} to the CPU as float32"
    ) from errors[0]


def _numpy_from_dlpack(x: Any) -> npt.NDArray[Any]:
    on_cpu = x.__dlpack_device__()[0] == _CPU
    return np.from_dlpack(x) if on_cpu else np.from_dlpack(x, device="cpu")


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
