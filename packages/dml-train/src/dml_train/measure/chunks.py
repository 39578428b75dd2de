"""Images in chunks: what passes through the network at a time, and the images that can't be loaded.

Shapes: `B` images of one chunk.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dml_core import Split
from dml_train.data.batches import LoadFailure, load_item

CHUNK_SIZE = 256  # images; the last bits of an embedding depend on it

T = TypeVar("T")
Rows = TypeVar("Rows", bound=Sequence[object] | npt.NDArray[np.generic])


class BadImage(NamedTuple):
    """An image that can't be loaded."""

    position: int  # in its chunk
    reason: str


class LoadedChunk(NamedTuple):
    """A chunk's images in their order, without the bad ones."""

    images: Tensor | None  # (B, channels, height, width) float32; None if all are bad
    bad: Sequence[BadImage]


class ImageChunks(Dataset[LoadedChunk | LoadFailure]):
    """Chosen items of a split, without augmentation, chunk by chunk.

    Args:
        split: the images.
        chunks: the items of each chunk.
        names: (len(split),) how messages call the items; default: by index and class.
    """

    def __init__(
        self, split: Split, chunks: Sequence[npt.NDArray[np.int64]], names: Sequence[object] | None = None
    ) -> None:
        self.split, self.chunks, self.names = split, chunks, names

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> LoadedChunk | LoadFailure:
        """Load a chunk; if that fails, load its images one by one to find the bad ones."""
        items = self.chunks[chunk]
        try:
            return LoadedChunk(self.split.load(items), [])
        except Exception:  # a third party's data set may raise anything
            trace = traceback.format_exc()
        results = [load_item(self.split, item, self.describe(item)) for item in items.tolist()]
        bad = [
            BadImage(position, result.message)
            for position, result in enumerate(results)
            if isinstance(result, LoadFailure)
        ]
        if not bad:
            first, last = self.describe(items[0]), self.describe(items[-1])
            return LoadFailure(f"{first} to {last} can't be loaded together, though each can alone:\n{trace}")
        images = [result for result in results if isinstance(result, Tensor)]
        return LoadedChunk(torch.cat(images) if images else None, bad)

    def describe(self, item: int) -> str:
        """Name an item for messages."""
        if self.names is not None:
            return str(self.names[item])
        return f"item {item} (class {self.split.class_names[self.split.labels[item]]!r})"


def split_chunks(items: Rows, size: int = CHUNK_SIZE) -> list[Rows]:
    """Split a list or an array into consecutive chunks of `size`; the last chunk may be smaller."""
    return [cast("Rows", items[begin : begin + size]) for begin in range(0, len(items), size)]


def drop_bad(items: Sequence[T], bad: Sequence[BadImage]) -> list[T]:
    """Return a chunk's items without the bad ones."""
    positions = {image.position for image in bad}
    return [item for position, item in enumerate(items) if position not in positions]
