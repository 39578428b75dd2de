"""Images in a folder of a person's own: which they are, and how they go through a trained network in chunks.

Shapes: `B` rows of a chunk, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dml_core import DmlError, Split
from dml_train.data.batches import LoadFailure, load_ahead
from dml_train.data.decoding import SUFFIXES
from dml_train.measure.embed import forward
from dml_train.trained.model import TrainedModel

CHUNK = 256  # files

T = TypeVar("T")


class BadImage(NamedTuple):
    """A file that can't be decoded."""

    place: int  # among the files of its chunk
    reason: str


class EmbeddedChunk(NamedTuple):
    """The embeddings of a chunk's files, in their order; bad ones are left out."""

    embeddings: npt.NDArray[np.float32]  # (B, D)
    bad: Sequence[BadImage]


class _Decoded(NamedTuple):
    images: Tensor | None  # None if none could be decoded
    bad: list[BadImage]


class _FileChunks(Dataset[_Decoded | LoadFailure]):
    """The images of a chunk by its number, of a split that has all chunks' images one after the other."""

    def __init__(self, split: Split, sizes: Sequence[int], skip: bool) -> None:
        self.split, self.skip = split, skip
        self.ends = np.cumsum([0, *sizes])

    def __getitem__(self, chunk: int) -> _Decoded | LoadFailure:
        items = np.arange(self.ends[chunk], self.ends[chunk + 1])
        try:
            return _Decoded(self.split.load(items), [])
        except Exception:  # one by one, to find which it is; decoders raise whatever they like
            images: list[Tensor] = []
            bad: list[BadImage] = []
            for place, item in enumerate(items):
                try:
                    images.append(self.split.load(np.array([item])))
                except Exception as error:
                    reason = str(error) if isinstance(error, DmlError) else f"{type(error).__name__}: {error}"
                    bad.append(BadImage(place, reason))
        if not bad:
            return LoadFailure(
                f"images {items[0]} to {items[-1]} can't be loaded together, though each can alone"
            )
        if not self.skip:
            return LoadFailure(f"{bad[0].reason}; or leave such images out with --on-bad-image skip")
        return _Decoded(torch.cat(images) if images else None, bad)


def images_in(folder: Path) -> list[Path]:
    """The images in a folder and its folders, by their paths from there, in the order of these.

    Hidden files and folders, and files whose names don't end like an image's, are left out.

    Raises:
        DmlError: if it isn't a folder, or holds no image.
    """
    if not folder.is_dir():
        raise DmlError(f"{folder} is not a folder; expected one with images in it, or in folders in it")
    images = [file.relative_to(folder) for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES]
    found = [
        path
        for path in images
        if not any(part.startswith(".") for part in path.parts) and (folder / path).is_file()
    ]
    if not found:
        raise DmlError(f"{folder} holds no images: no file there ends in {', '.join(sorted(SUFFIXES))}")
    return sorted(found)


def in_chunks(files: Sequence[T]) -> list[Sequence[T]]:
    """The files in their order, `CHUNK` at a time; the last chunk may have fewer."""
    return [files[first : first + CHUNK] for first in range(0, len(files), CHUNK)]


def embed_chunks(
    model: TrainedModel, chunks: Sequence[Sequence[Path]], *, skip: bool, workers: int
) -> Iterator[EmbeddedChunk]:
    """The embeddings of files, chunk after chunk. That of a file depends on its chunk by rounding alone.

    Args:
        model: what embeds.
        chunks: the files, as `in_chunks` parts them.
        skip: whether images that can't be decoded are left out; else they are an error.
        workers: processes that load ahead.

    Raises:
        DmlError: if a file can't be decoded, or an embedding isn't finite, with the path.
    """
    source = _FileChunks(model.split_of([*chain(*chunks)]), [*map(len, chunks)], skip)
    cuda = model.device.type == "cuda"
    for files, decoded in zip(chunks, load_ahead(source, range(len(chunks)), workers, pin=cuda)):
        if decoded.images is None:
            empty = np.empty((0, model.model.head.embedding_dim), dtype=np.float32)
            yield EmbeddedChunk(empty, decoded.bad)
            continue
        embeddings_BD = forward(model.model, decoded.images, model.device, model.precision)
        if not (finite := np.isfinite(embeddings_BD).all(axis=1)).all():
            file = without(files, decoded.bad)[int(finite.argmin())]
            raise DmlError(
                f"the embedding of {file} isn't finite; the network's weights or that image are damaged"
            )
        yield EmbeddedChunk(embeddings_BD, decoded.bad)


def without(files: Sequence[T], bad: Sequence[BadImage]) -> list[T]:
    """The files of a chunk without the bad ones."""
    places = {image.place for image in bad}
    return [file for place, file in enumerate(files) if place not in places]
