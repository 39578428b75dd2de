"""Parts of a checkpoint: a file for each rank, with its rows of the tensors that the ranks share.

The files are those of torch.distributed.checkpoint's safetensors format: each is a safetensors file whose metadata
``DCP_SHARDING_INFO`` has the place of its first row in the whole tensor. So `HuggingFaceStorageReader` of
torch.distributed.checkpoint reads the folder, too. Nothing in them is pickled, so reading them runs no code.

Writing copies no tensor, and reading allocates the rows that were asked for, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.checksums import FileRecord
from dml_train.ranks.sharding import OwnRows

SUFFIX = ".safetensors"
_SHARDING = "DCP_SHARDING_INFO"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
           "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BLOCK = 1 << 24  # bytes
_LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library


class _Piece(NamedTuple):
    """The consecutive rows of a tensor that a file holds, and their place in it in bytes."""

    first: int
    last: int
    path: Path
    begin: int
    dtype: torch.dtype
    row_shape: tuple[int, ...]


def part_name(rank: int, world_size: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05d}-of-{world_size:05d}{SUFFIX}"


def write_part(path: Path, rows: Mapping[str, OwnRows]) -> FileRecord:
    """Write and sync a file of rows, and return its manifest's entry; nothing is copied but what is on a GPU.

    Raises:
        OSError: if the disk refuses.
    """
    # Large items first, so that every tensor begins at a multiple of its item's size.
    order = sorted(rows, key=lambda name: (-rows[name].values.element_size(), name))
    offsets = {name: [rows[name].first, *[0] * (rows[name].values.ndim - 1)] for name in order}
    metadata = {
        "format": "pt",
        "DCP_VERSION": "1.0",
        _SHARDING: json.dumps({name: {"saved_offsets": offset} for name, offset in offsets.items()}),
    }
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name in order:
        values = rows[name].values
        begin, end = end, end + values.numel() * values.element_size()
        header[name] = {
            "dtype": _NAMES[values.dtype],
            "shape": list(values.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:

        def write(content: bytes | memoryview) -> None:
            file.write(content)
            digest.update(content)

        write(struct.pack("<Q", len(text)) + text)
        for name in order:
            content = _bytes_of(rows[name].values.detach().cpu().contiguous())
            for start in range(0, len(content), _BLOCK):
                write(content[start : start + _BLOCK])
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return FileRecord(bytes=size, sha256=digest.hexdigest())


class Parts:
    """The rows in a folder of parts.

    Args:
        folder: the files' folder, of a checkpoint whose checksums are right.

    Raises:
        DmlError: if a file isn't such a part, although its checksum is right, or the rows of a tensor have a gap.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: dict[str, list[_Piece]] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                for name, piece in _read_header(path).items():
                    self._pieces.setdefault(name, []).append(piece)
            except (
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                struct.error,
                RecursionError,
            ) as error:
                raise DmlError(
                    f"{path} holds no rows of a checkpoint: {type(error).__name__}: {error}"
                ) from error
        for name, pieces in self._pieces.items():
            pieces.sort(key=lambda piece: piece.first)
            ends = [0, *(piece.last for piece in pieces)]
            if any(piece.first != end for piece, end in zip(pieces, ends, strict=False)):
                raise DmlError(f"{folder} holds other rows of {name} than 0 to {ends[-1]}, each once")

    def read(self, name: str, placeholder: Tensor, first: int, last: int) -> Tensor:
        """Read rows `first` to `last` of a tensor, on the CPU.

        Args:
            name: the tensor's, its path in the state.
            placeholder: has the whole tensor's shape and dtype.
            first, last: of the rows.

        Raises:
            DmlError: if the parts hold no such tensor, or reading them fails.
        """
        rows = torch.empty(last - first, *placeholder.shape[1:], dtype=placeholder.dtype)
        self.read_into(rows, name, placeholder, first)
        return rows

    def read_into(self, rows: Tensor, name: str, placeholder: Tensor, first: int) -> None:
        """Read consecutive rows of a tensor, from row `first` on, into a contiguous tensor; see `read`."""
        pieces = self._pieces.get(name, [])
        total, *row_shape = placeholder.shape
        expected = (placeholder.dtype, tuple(row_shape))
        if not pieces or pieces[-1].last != total or any((p.dtype, p.row_shape) != expected for p in pieces):
            raise DmlError(
                f"{self._folder} doesn't hold the {tuple(placeholder.shape)} rows of {name} in {placeholder.dtype} "
                "that the checkpoint's state expects"
            )
        row_bytes = math.prod(row_shape) * placeholder.element_size()
        content = _bytes_of(rows)
        for piece in pieces:
            start, stop = max(first, piece.first), min(first + len(rows), piece.last)
            if start < stop:
                _read(
                    piece.path,
                    piece.begin + (start - piece.first) * row_bytes,
                    content[(start - first) * row_bytes : (stop - first) * row_bytes],
                )


def _read_header(path: Path) -> dict[str, _Piece]:
    """Read which rows of which tensors a file holds; errors of many kinds for a file that isn't such a part."""
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header has {length} bytes")
        header = json.loads(file.read(length))
    offsets = json.loads(header.pop("__metadata__")[_SHARDING])
    pieces = {}
    for name, entry in header.items():
        dtype, (rows, *row_shape) = _DTYPES[entry["dtype"]], entry["shape"]
        first, *others = offsets[name]["saved_offsets"]
        begin, end = entry["data_offsets"]
        if any(type(number) is not int or number < 0 for number in (rows, *row_shape, first, begin, end)):
            raise ValueError(f"{name} has shape {entry['shape']}")
        if any(others) or end - begin != math.prod((rows, *row_shape)) * dtype.itemsize:
            raise ValueError(f"{name} has {end - begin} bytes for the shape {entry['shape']}")
        if 8 + length + end > size:
            raise ValueError(f"{name} is longer than the file")
        pieces[name] = _Piece(first, first + rows, path, 8 + length + begin, dtype, tuple(row_shape))
    return pieces


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, as a view of its memory."""
    return tensor.flatten().view(torch.uint8).numpy().data


def _read(path: Path, begin: int, content: memoryview) -> None:
    """Fill a memory from a place of a file.

    Raises:
        DmlError: if the file ends there, or the disk fails.
    """
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            while content:
                if not (count := file.readinto(content)):
                    raise DmlError(f"{path} ends before its rows do")
                content = content[count:]
    except OSError as error:
        raise DmlError(f"can't read {path}: {error.strerror}") from error
