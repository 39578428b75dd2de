"""Parts of a checkpoint: a file for each rank, with its rows of the tensors that the ranks share.

The files are those of torch.distributed.checkpoint's safetensors format: each is a safetensors file whose metadata
``DCP_SHARDING_INFO`` has the place of its first row in the whole tensor. So `HuggingFaceStorageReader` of
torch.distributed.checkpoint reads the folder, too. Nothing in them is pickled, so reading them runs no code.
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
    """Consecutive rows of a larger tensor, and the index of the first."""

    values: Tensor
    first: int


class _Piece(NamedTuple):
    """The consecutive rows of a tensor that a file holds; `rows` is safetensors' view of them, which reads a slice."""

    first: int
    last: int
    rows: Any


def part_name(rank: int, world_size: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05d}-of-{world_size:05d}{SUFFIX}"


def write_part(path: Path, rows: Mapping[str, OwnRows]) -> FileRecord:
    """Write and sync a file of rows, and return its manifest's entry; nothing is copied but what is on a GPU.

    Raises:
        OSError, SafetensorError: if the disk refuses.
    """
    offsets = {
        name: {"saved_offsets": [own.first, *[0] * (own.values.ndim - 1)]} for name, own in rows.items()
    }
    tensors = {name: own.values.detach().cpu().contiguous() for name, own in rows.items()}
    # No other metadata: safetensors would write several entries in random order.
    safetensors.torch.save_file(tensors, path, {_SHARDING: json.dumps(offsets)})
    sync(path)
    return record_of(path)


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
                file: Any = safetensors.safe_open(path, "pt")
                offsets = json.loads(file.metadata()[_SHARDING])
                for name in file.keys():  # noqa: SIM118  # it is no mapping
                    rows, (first, *_) = file.get_slice(name), offsets[name]["saved_offsets"]
                    piece = _Piece(first, first + rows.get_shape()[0], rows)
                    self._pieces.setdefault(name, []).append(piece)
            except Exception as error:  # errors of many kinds for a file that isn't such a part
                raise DmlError(
                    f"{path} holds no rows of a checkpoint: {type(error).__name__}: {error}"
                ) from error
        for name, pieces in self._pieces.items():
            pieces.sort(key=lambda piece: (piece.first, piece.last))
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
        pieces = self._pieces.get(name, [])
        overlaps = [(piece, max(first, piece.first), min(last, piece.last)) for piece in pieces]
        found = [piece.rows[a - piece.first : b - piece.first] for piece, a, b in overlaps if a < b]
        empty = torch.empty(0, *placeholder.shape[1:], dtype=placeholder.dtype)
        fits = all((rows.dtype, rows.shape[1:]) == (empty.dtype, empty.shape[1:]) for rows in found)
        if not pieces or pieces[-1].last != len(placeholder) or not fits:
            raise DmlError(
                f"{self._folder} doesn't hold the {tuple(placeholder.shape)} rows of {name} in {placeholder.dtype} "
                "that the checkpoint's state expects"
            )
        return torch.cat(
            [empty, *found]
        )  # a copy: what was found is mapped from files that the run may remove
