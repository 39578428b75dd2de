"""Parts of a checkpoint: a file per rank, with the rank's rows of the tensors that ranks share.

The files have torch.distributed.checkpoint's safetensors format: the metadata ``DCP_SHARDING_INFO``
gives the position of the first row in the full tensor. Use `HuggingFaceStorageReader` of
torch.distributed.checkpoint to read the folder with other programs. The files don't use pickle, so
reading can't run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.checksums import FileRecord, record_of
from dml_train.files import sync

SUFFIX = ".safetensors"
_SHARDING = "DCP_SHARDING_INFO"


class OwnRows(NamedTuple):
    """Consecutive rows of a larger tensor, and the index of the first row."""

    values: Tensor
    first: int


class _Piece(NamedTuple):
    """Rows `first` to `last` - 1 of a tensor in a file; `rows` is a safetensors slice, read on
    demand.
    """

    first: int
    last: int
    rows: Any


def part_name(rank: int, world_size: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05d}-of-{world_size:05d}{SUFFIX}"


def write_part(path: Path, rows: Mapping[str, OwnRows]) -> FileRecord:
    """Write and sync a file of rows, and return the entry for the manifest; only tensors on a GPU
    are copied.

    Raise an OSError or SafetensorError if the write fails.
    """
    offsets = {
        name: {"saved_offsets": [own.first, *[0] * (own.values.ndim - 1)]}
        for name, own in rows.items()
    }
    tensors = {name: own.values.detach().cpu().contiguous() for name, own in rows.items()}
    # Don't add other metadata, since safetensors would write multiple entries in random order.
    safetensors.torch.save_file(tensors, path, {_SHARDING: json.dumps(offsets)})
    sync(path)
    return record_of(path)


class Parts:
    """The rows in the folder ``parts`` of an intact checkpoint.

    Raises a `DmlError` if a file isn't a part, or the rows of a tensor have a gap.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: dict[str, list[_Piece]] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                file: Any = safetensors.safe_open(path, "pt")
                offsets = json.loads(file.metadata()[_SHARDING])
                for name in file.keys():  # noqa: SIM118  # `file` isn't a mapping
                    rows, (first, *_) = file.get_slice(name), offsets[name]["saved_offsets"]
                    piece = _Piece(first, first + rows.get_shape()[0], rows)
                    self._pieces.setdefault(name, []).append(piece)
            except Exception as error:  # a file that isn't a part can raise any exception
                raise DmlError(
                    f"{path} doesn't contain rows of a checkpoint: {type(error).__name__}: {error}"
                ) from error
        for name, pieces in self._pieces.items():
            pieces.sort(key=lambda piece: (piece.first, piece.last))
            ends = [0, *(piece.last for piece in pieces)]
            if any(piece.first != end for piece, end in zip(pieces, ends, strict=False)):
                raise DmlError(
                    f"{folder} contains wrong rows of {name}; expected rows 0 to {ends[-1] - 1}, "
                    "each once"
                )

    def read(self, name: str, placeholder: Tensor, first: int, last: int) -> Tensor:
        """Read rows of a tensor, on the CPU; raise a `DmlError` if the parts don't have such a
        tensor.

        Args:
            name: the tensor's path in the state.
            placeholder: a tensor with the full shape and the dtype.
            first, last: the first row to read, and the row after the last.
        """
        pieces = self._pieces.get(name, [])
        overlaps = [(piece, max(first, piece.first), min(last, piece.last)) for piece in pieces]
        found = [piece.rows[a - piece.first : b - piece.first] for piece, a, b in overlaps if a < b]
        empty = torch.empty(0, *placeholder.shape[1:], dtype=placeholder.dtype)
        fits = all((rows.dtype, rows.shape[1:]) == (empty.dtype, empty.shape[1:]) for rows in found)
        if not pieces or pieces[-1].last != len(placeholder) or not fits:
            raise DmlError(
                f"{self._folder} doesn't contain all rows of {name}, which the checkpoint's state "
                f"expects with shape {tuple(placeholder.shape)} and dtype {placeholder.dtype}"
            )
        # Copy the rows, since they are mapped from files that the run may remove.
        return torch.cat([empty, *found])
