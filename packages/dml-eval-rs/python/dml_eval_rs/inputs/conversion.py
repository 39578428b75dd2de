"""Conversion of tensors, columns, blocks and lists to numpy arrays; the containers' libraries are
not imported.

Containers are recognised by protocol: `__array__`, `__dlpack__`, `__arrow_c_array__`, `to_numpy`,
or iteration. Functions return the array, or raise a TypeError or ValueError that names the argument
and how to fix it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_UNREADABLE = (ValueError, TypeError, RuntimeError, BufferError, AttributeError)
_PROTOCOLS = (
    "__array__", "__array_interface__", "__dlpack__", "__arrow_c_array__", "__arrow_c_stream__",
    "to_numpy",
)  # fmt: skip
_FAMILIES = {
    "i": "integers",
    "u": "integers",
    "b": "integers",
    "U": "text",
    "O": "text",
    "T": "text",
}
_GROWTH = 1.25
_BLOCK = (
    1 << 22
)  # numbers to be converted per batch, so that only the result and a block are in memory
_CPU = 1  # DLPack's number for this device


def to_array(x: object, name: str, ndim: int | None = None) -> npt.NDArray[Any]:
    """Convert to an array, in place if numpy can read the memory.

    Copies tensors on other devices, dtypes that numpy lacks (to float32), lists, and columns of
    variable-size lists. If `ndim` is 2 (a matrix) or 1 (labels), lists of arrays are blocks, and a
    matrix can be a column of rows.
    """
    if isinstance(x, (str, os.PathLike)):
        came = f"{name} is the path {str(x)!r}"
        raise TypeError(f"{came}; expected an array: use load_array({str(x)!r})")
    if np.ma.is_masked(x):
        raise TypeError(
            f"{name} has masked entries; expected an unmasked array: drop or fill those rows"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(x, name)
    if _is_blocks(x, ndim):
        return _join_blocks(x, name, ndim)
    if ndim == 2 and _is_fixed_size_list(x):
        return _stack_fixed_size_list(x, name)
    array = _widen(_read(x, name))
    if array.dtype.kind == "O" and array.ndim == 0:
        raise TypeError(
            f"{name} is a {type(x).__name__}; expected an array, a tensor, a table's column, a "
            "list, or an iterator over blocks"
        )
    return _stack_rows(array, name) if ndim == 2 and array.dtype.kind == "O" else array


def to_labels(x: object, name: str) -> npt.NDArray[Any]:
    """Convert labels to an array and keep different labels distinct, such as ``1`` and ``"1"`` in a
    list.

    Arrays of objects, such as text columns from pandas, polars or Arrow, become arrays of strings
    or integers.
    """
    array = to_array(x, name, 1)
    if array.dtype.kind in "US" and not hasattr(x, "__array__") and not _is_blocks(x, 1):
        entries: list[Any] = list(x)  # type: ignore[call-overload]  # numpy read it as a sequence
        # numpy converts numbers in a list with a string to strings, so [1, "1"] would become equal
        # strings.
        expected = str if array.dtype.kind == "U" else bytes
        _check_entries(entries, f"{name} is a {type(x).__name__}", name, expected)
        array = _keep_final_nuls(array, entries, name)
    if array.dtype.kind == "f" and array.ndim == 1 and np.isnan(array).any():
        # Tables convert integers to floats when a value is missing.
        _raise_missing(int(np.isnan(array).argmax()), name)
    if array.dtype.kind != "O" or array.ndim != 1:
        return array
    entries = [entry.item() if isinstance(entry, np.integer) else entry for entry in array.tolist()]
    are_integers = bool(entries) and type(entries[0]) is int
    _check_entries(entries, f"{name} has dtype object", name, int if are_integers else str)
    if not are_integers:
        return _strings(entries, name)
    try:
        return np.array(entries, np.int64 if max(entries) < 2**63 else np.uint64)
    except OverflowError as error:
        raise ValueError(
            f"{name} has integers from {min(entries)} to {max(entries)}; expected 64-bit integers "
            f"or strings: use [str(label) for label in {name}]"
        ) from error


def _read(x: Any, name: str) -> npt.NDArray[Any]:
    """Read an object, using the first protocol that works."""
    if not hasattr(x, "__array__"):
        if hasattr(x, "__dlpack__"):
            return _from_dlpack(x, name)
        if hasattr(x, "__arrow_c_array__") or hasattr(x, "__arrow_c_stream__"):
            return _from_arrow(x, name)
        if hasattr(x, "to_numpy"):
            return np.asarray(x.to_numpy())
    try:
        array = np.asarray(x)
        # numpy's strings drop a trailing NUL, but polars' to_numpy returns objects, which keep it.
        return (
            np.asarray(x.to_numpy())
            if array.dtype.kind == "U" and hasattr(x, "to_numpy")
            else array
        )
    except _UNREADABLE as error:
        # Libraries for other devices reject implicit copies, but offer explicit copies.
        if hasattr(x, "__dlpack__"):
            return _from_dlpack(x, name)
        if hasattr(x, "to_numpy"):
            return np.asarray(x.to_numpy())
        raise TypeError(
            f"{name} is a {type(x).__name__}, which numpy can't read: {error}"
        ) from error


def _check_entries(entries: list[Any], what: str, name: str, expected: type) -> None:
    for place, entry in enumerate(entries):
        if isinstance(entry, expected) and not (expected is int and isinstance(entry, bool)):
            continue
        if (
            entry is None
            or type(entry).__name__ == "NAType"
            or (isinstance(entry, float) and entry != entry)
        ):
            _raise_missing(place, name)
        raise TypeError(
            f"{what} whose entry {place} is {entry!r}, of type {type(entry).__name__}; expected "
            f"entries of type {expected.__name__}, or an array of integers or booleans: use "
            f"numpy.array([str(label) for label in {name}]), or numpy.asarray({name}).astype(int) "
            "if all are integers"
        )


def _raise_missing(place: int, name: str) -> None:
    raise ValueError(
        f"{name} has a missing value at index {place}; expected a label per item: drop the rows"
    )


def _keep_final_nuls(array: npt.NDArray[Any], entries: list[Any], name: str) -> npt.NDArray[Any]:
    """Keep trailing NULs of entries, which numpy drops from fixed-length strings and bytes."""
    if array.dtype.kind == "U":
        return _strings(entries, name) if any(entry.endswith("\0") for entry in entries) else array
    ends = [place for place, entry in enumerate(entries) if entry.endswith(b"\0")]
    if ends:
        raise ValueError(
            f"{name} has the bytes {entries[ends[0]]!r} at index {ends[0]}, whose NUL at the end "
            "numpy drops; expected bytes that don't end in NUL, or text: use [label.hex() for "
            f"label in {name}]"
        )
    return array


def _strings(entries: list[str], name: str) -> npt.NDArray[Any]:
    if not hasattr(np.dtypes, "StringDType"):  # numpy 1
        if any(entry.endswith("\0") for entry in entries):
            raise ValueError(
                f"{name} has a string that ends in NUL, which numpy 1 drops; use numpy 2"
            )
        return np.array(entries, dtype=np.str_)
    try:
        # str() of a numpy string also drops NULs.
        return np.array([str.__str__(entry) for entry in entries], dtype=np.dtypes.StringDType())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has the string {error.object!r}, which isn't valid Unicode ({error.reason}); "
            "expected text"
        ) from error


def concatenate_blocks(blocks: Iterable[Any]) -> Any:
    """Concatenate blocks of embeddings, or blocks of multiple arrays, such as
    ``(embeddings, labels)``.

    For example, use ``evaluate(*concatenate_blocks((model(x), y) for x, y in loader))``. Only the
    result and a single block are in memory. Blocks can be anything that `evaluate` accepts, such as
    tensors on an accelerator.

    Args:
        blocks: (n_i, D) arrays, or tuples of such an array and further arrays with n_i entries; n_i
            can differ.

    Raises:
        TypeError: if blocks have different kinds of entries.
        ValueError: if blocks is empty, or blocks differ in width or number of arrays.
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
            raise ValueError(
                f"block {place} has {len(arrays)} arrays; expected {len(columns)}, like block 0"
            )
        sizes = [column.append(array) for column, array in zip(columns, arrays, strict=True)]
        if len(set(sizes)) > 1:
            lengths = ", ".join(map(str, sizes))
            raise ValueError(
                f"block {place} has arrays of lengths {lengths}; expected equal lengths"
            )
    if not columns:
        raise ValueError("blocks is empty; expected at least one block")
    found = tuple(column.finish() for column in columns)
    return found if several else found[0]


def _is_blocks(x: object, ndim: int | None) -> bool:
    """Whether this is an iterable that does not support an array protocol, or, if `ndim` is given,
    a list of arrays.
    """
    if isinstance(x, (list, tuple)):
        # A list of numpy rows isn't treated as blocks, because numpy stacks the rows faster.
        return (
            ndim is not None
            and _depth(x) >= 1
            and (_depth(x) >= ndim or not isinstance(x[0], np.ndarray))
        )
    if isinstance(x, (str, bytes, dict, set, frozenset, range)) or hasattr(x, "__getitem__"):
        return False
    return isinstance(x, Iterable) and not any(hasattr(x, protocol) for protocol in _PROTOCOLS)


def _depth(x: Any) -> int:
    """Return the first entry's number of dimensions: 0 if it is not an array, 1 for a column or if
    unknown.
    """
    first = x[0] if x else None
    depth = getattr(first, "ndim", None)
    return (
        depth
        if isinstance(depth, int)
        else int(any(hasattr(first, protocol) for protocol in _PROTOCOLS))
    )


def _holds_arrays(block: object) -> bool:
    """Whether a block is a list or tuple of arrays, such as embeddings and labels."""
    return isinstance(block, (list, tuple)) and _depth(block) >= 1


def _join_blocks(x: Any, name: str, ndim: int | None) -> npt.NDArray[Any]:
    """Concatenate the blocks of an iterable. Single entries, such as strings from a generator, are
    read as a list.
    """
    blocks: Iterator[Any] = iter(x)
    grown = _GrownArray(name, ndim)
    for place, block in enumerate(blocks):
        if place == 0 and ndim != 2 and (isinstance(block, (str, bytes)) or np.ndim(block) == 0):
            return grown.convert([block, *blocks], name)
        if _holds_arrays(block) and (ndim == 1 or _depth(block) > 1):
            raise TypeError(
                f"{name} has blocks of {len(block)} arrays; expected one array per block: if "
                "blocks contain embeddings and labels, use evaluate(*concatenate_blocks(blocks))"
            )
        grown.append(block)
    if grown.parts == 0:
        raise ValueError(f"{name} is an empty {type(x).__name__}; expected at least one block")
    return grown.finish()


class _GrownArray:
    """An array that grows when blocks are appended. It is not copied if the system can remap
    memory.
    """

    def __init__(self, name: str, ndim: int | None) -> None:
        self._name, self._ndim = name, ndim
        self._array: npt.NDArray[Any] = np.zeros(0)
        self._length = self.parts = 0

    def convert(self, block: Any, name: str) -> npt.NDArray[Any]:
        """Convert a block."""
        return to_labels(block, name) if self._ndim == 1 else to_array(block, name, self._ndim)

    def append(self, block: Any) -> int:
        """Append a block, then return the block's length."""
        name = f"block {self.parts} of {self._name}"
        array = self.convert(block, name)
        if array.dtype.kind == "T":  # these arrays can't grow in place
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
            raise ValueError(f"{name} has shape {array.shape}; expected ({expected}), like block 0")
        families = {_FAMILIES.get(each.dtype.kind, each.dtype.kind) for each in (array, old)}
        dtype = np.result_type(old.dtype, array.dtype)
        # int64 and uint64 become float64, which merges large ids.
        if len(families) > 1 or dtype.kind not in (old.dtype.kind, array.dtype.kind):
            raise TypeError(f"{name} has dtype {array.dtype}; expected {old.dtype}, like block 0")
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
        """Return the array and drop the spare capacity."""
        self._array.resize((self._length, *self._array.shape[1:]), refcheck=False)
        return self._array


def _from_torch(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert a torch tensor, not its gradient, in place if it is on the CPU, otherwise in blocks
    of rows.
    """
    torch = sys.modules["torch"]
    padded, sparse = f"torch.nested.to_padded_tensor({name}, 0.0)", x.layout is not torch.strided
    unreadable = (
        (
            x.is_nested,
            "a nested tensor",
            f"a matrix: if all rows have the same length, use {padded}",
        ),
        (
            x.is_meta,
            "a tensor on meta, which has no numbers",
            "a tensor on the CPU or an accelerator",
        ),
        (sparse, f"a tensor of layout {x.layout}", f"a dense tensor: use {name}.to_dense()"),
        (x.is_quantized, "a quantized tensor", f"numbers: use {name}.dequantize()"),
    )
    for is_unreadable, what, expected in unreadable:
        if is_unreadable:
            raise TypeError(f"{name} is {what}; expected {expected}")
    tensor, on_cpu = x.detach(), x.device.type == "cpu"
    # bfloat16 and the 8-bit formats become float32, which can represent all values.
    narrow = x.is_floating_point() and x.dtype not in (torch.float16, torch.float32, torch.float64)
    try:
        if on_cpu:
            # Inside functionalize, a tensor does not have memory, so numpy() would read other
            # memory.
            tensor.untyped_storage().data_ptr()
        tensor = tensor.resolve_conj().resolve_neg()
        if on_cpu and not narrow:
            array: npt.NDArray[Any] = tensor.numpy()
            return array
    except TypeError as error:
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, which numpy lacks; expected numbers"
        ) from error
    except RuntimeError as error:
        raise TypeError(
            f"{name} is a tensor without readable numbers ({error}); expected a tensor outside "
            "torch.func's transforms, such as grad and vmap"
        ) from error
    copy = torch.empty(tensor.shape, dtype=torch.float32 if narrow else tensor.dtype, device="cpu")
    for rows in _row_blocks(tuple(tensor.shape)):
        copy[rows].copy_(tensor[rows])
    converted: npt.NDArray[Any] = copy.numpy()
    return converted


def _from_dlpack(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert by DLPack, in place if the array is on the CPU; the exporter copies from other
    devices.
    """
    failures = TypeError, ValueError, RuntimeError, BufferError
    try:
        # numpy before 2.1 can't request a copy.
        on_cpu = x.__dlpack_device__()[0] == _CPU
        return np.from_dlpack(x) if on_cpu else np.from_dlpack(x, device="cpu")
    except failures as error:
        torch = sys.modules.get("torch")
        if torch is not None:  # torch can read bfloat16 and other devices
            with contextlib.suppress(*failures):
                return _from_torch(torch.from_dlpack(x), name)
        raise TypeError(
            f"{name} is a {type(x).__name__}, which numpy can't read by DLPack: {error}; expected "
            f"numbers on the CPU: copy {name} to the CPU as float32"
        ) from error


def _widen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert bfloat16 and smaller floats from ml_dtypes to float32, block by block; don't change
    other arrays.
    """
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


def _from_arrow(x: Any, name: str) -> npt.NDArray[Any]:
    """Read an object that only supports Arrow's protocol, using a library that is already
    imported.
    """
    pyarrow, polars = sys.modules.get("pyarrow"), sys.modules.get("polars")
    if pyarrow is not None:
        array = pyarrow.array(x) if hasattr(x, "__arrow_c_array__") else pyarrow.chunked_array(x)
        return (
            _stack_fixed_size_list(array, name) if _is_fixed_size_list(array) else np.asarray(array)
        )
    if polars is not None:
        return np.asarray(polars.Series(x))
    raise TypeError(
        f"{name} is a {type(x).__name__}, which only supports Arrow's protocol; expected an array: "
        f"import pyarrow or polars first, or pass pyarrow.array({name})"
    )


def _is_fixed_size_list(x: Any) -> bool:
    """Whether this is an Arrow array or chunked array of type FixedSizeList, or of tensors stored
    like this.
    """
    kind = getattr(x, "type", None)
    return hasattr(getattr(kind, "storage_type", kind), "list_size")


def _stack_fixed_size_list(x: Any, name: str) -> npt.NDArray[Any]:
    """Convert Arrow's fixed-size lists to a matrix, in place if there is a single chunk."""
    if x.null_count:
        missing = np.flatnonzero(np.asarray(x.is_null()))
        raise ValueError(
            f"{name} has a missing row at index {missing[0]}; expected numbers: drop those rows"
        )
    chunks = getattr(x, "chunks", [x])
    array = chunks[0] if len(chunks) == 1 else x.combine_chunks()
    array = getattr(array, "storage", array)
    values, width = array.flatten(), array.type.list_size
    if values.null_count:
        place = int(np.flatnonzero(np.asarray(values.is_null()))[0]) // width
        raise ValueError(f"{name} has a missing number in row {place}; expected numbers")
    matrix: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(array), width)
    return matrix


def _stack_rows(column: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Copy a column to a matrix if entries are lists or arrays of numbers; don't change an empty
    column.
    """
    entries = column.reshape(-1) if column.ndim == 1 or column.shape[1:] == (1,) else column[:0]
    if len(entries) == 0:
        return column
    first = np.asarray(entries[0])
    if first.ndim != 1 or first.dtype.kind not in "iufb":
        came = f"{name} has dtype object whose entry 0 is a {type(entries[0]).__name__}"
        raise TypeError(f"{came}; expected rows of numbers")
    matrix = np.empty((len(entries), len(first)), first.dtype)
    for place, entry in enumerate(entries):
        if entry is None or np.ndim(entry) == 0:
            raise ValueError(
                f"{name} has a missing row at index {place}; expected numbers: drop those rows"
            )
        row = np.asarray(entry)
        if row.shape != first.shape:
            raise ValueError(
                f"{name} row {place} has length {len(row)}; expected {len(first)}, like row 0"
            )
        if not np.can_cast(row.dtype, first.dtype, "same_kind"):
            raise TypeError(
                f"{name} row {place} has dtype {row.dtype}; expected {first.dtype}, like row 0"
            )
        matrix[place] = row
    return matrix
