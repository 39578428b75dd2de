"""Embed images, a chunk per forward pass.

Shapes: `N` items, `B` images per forward pass, `D` embedding dimension.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dml_core import DmlError, GroupedSplit, Labels, Relevance, Split
from dml_train.data.batches import LoadFailure, load_ahead, load_item
from dml_train.ranks.ranks import Ranks

CHUNK_SIZE = 256  # images per forward pass; the last bits of an embedding depend on it


class Network(Protocol):
    """A module from images (B, channels, height, width) to embeddings (B, D), for example an
    `EmbeddingModel`.
    """

    training: bool

    @property
    def embedding_dim(self) -> int: ...  # noqa: D102

    def train(self, mode: bool = True) -> Any: ...  # noqa: D102

    def __call__(self, images_BCHW: Tensor) -> Tensor: ...  # noqa: D102


class BadImage(NamedTuple):
    """An image that can't be loaded."""

    position: int  # the image's position in the chunk
    reason: str


class LoadedChunk(NamedTuple):
    """The images of a chunk in order, excluding bad images."""

    images: Tensor | None  # (B, channels, height, width) float32; None if all images are bad
    bad: Sequence[BadImage]


class EmbeddedChunk(NamedTuple):
    """The embeddings of a chunk's images in order, excluding bad images."""

    embeddings: npt.NDArray[np.float32]  # (B, D)
    bad: Sequence[BadImage]


@dataclass(eq=False)
class ImageChunks(Dataset[LoadedChunk | LoadFailure]):
    """Items of a split in chunks, not augmented."""

    split: Split
    chunks: Sequence[npt.NDArray[np.int64]]  # the items per chunk
    names: Sequence[object] | None = (
        None  # names of all items for messages; default: index and class
    )

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> LoadedChunk | LoadFailure:
        """Load a chunk; if that fails, load the images one by one to find bad images."""
        items = self.chunks[chunk]
        try:
            return LoadedChunk(self.split.load(items), [])
        except Exception:  # a third party's data set may raise anything
            trace = traceback.format_exc()
        images: list[Tensor] = []
        bad: list[BadImage] = []
        for position, item in enumerate(items.tolist()):
            result = load_item(self.split, item, self.describe(item))
            if isinstance(result, LoadFailure):
                bad.append(BadImage(position, result.message))
            else:
                images.append(result)
        if not bad:
            first, last = self.describe(items[0]), self.describe(items[-1])
            return LoadFailure(
                f"{first} to {last} can only be loaded one by one, not together:\n{trace}"
            )
        return LoadedChunk(torch.cat(images) if images else None, bad)

    def describe(self, item: int) -> str:
        """Return an item's name for messages."""
        if self.names is not None:
            return str(self.names[item])
        return f"item {item} (class {self.split.class_names[self.split.labels[item]]!r})"


def split_chunks(
    items: npt.NDArray[np.int64], size: int = CHUNK_SIZE
) -> list[npt.NDArray[np.int64]]:
    """Split items into consecutive chunks of `size`; the last chunk can be smaller."""
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


@torch.no_grad()
def forward(
    network: Network, images: Tensor, device: torch.device, precision: torch.dtype
) -> npt.NDArray[np.float32]:
    """Embed images in `precision`, using autocast, and return (B, D) float32."""
    with torch.autocast(device.type, precision, enabled=precision != torch.float32):
        embeddings = network(images.to(device, non_blocking=device.type == "cuda"))
    embeddings_BD: npt.NDArray[np.float32] = embeddings.float().cpu().numpy()
    return embeddings_BD


def embed_chunks(
    network: Network,
    source: ImageChunks,
    *,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    workers: int = 0,
) -> Generator[EmbeddedChunk, None, None]:
    """Embed images chunk by chunk in evaluation mode, and restore the network's mode.

    The network must be on `device`, and computes in `precision` using autocast; `workers` processes
    load ahead. Raise DmlError if a chunk can't be loaded for a reason other than bad images, or an
    embedding isn't finite.
    """
    was_training = network.training
    network.train(False)
    loaded_chunks = load_ahead(source, range(len(source)), workers, pin=device.type == "cuda")
    try:
        for loaded, items in zip(loaded_chunks, source.chunks):
            if loaded.images is None:
                yield EmbeddedChunk(
                    np.empty((0, network.embedding_dim), dtype=np.float32), loaded.bad
                )
                continue
            embeddings_BD = forward(network, loaded.images, device, precision)
            if not (finite := np.isfinite(embeddings_BD).all(axis=1)).all():
                kept = np.delete(items, [image.position for image in loaded.bad])
                raise DmlError(
                    f"the embedding of {source.describe(int(kept[finite.argmin()]))} isn't finite; "
                    "check this image and the network's weights"
                )
            yield EmbeddedChunk(embeddings_BD, loaded.bad)
    finally:
        network.train(was_training)


def embed(
    network: Network,
    split: Split,
    *,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    workers: int = 0,
    items: npt.NDArray[np.int64] | None = None,
    names: Sequence[object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.float32]:
    """Embed items of a split (default: all) in order and not augmented, and return (N, D) float32.

    See `embed_chunks` and `ImageChunks` for the arguments; `progress` is called with the number of
    embedded items and the total. Raise DmlError with the name of the item if it can't be loaded or
    the embedding isn't finite.
    """
    items = np.arange(len(split)) if items is None else items
    source = ImageChunks(split, split_chunks(items), names)
    parts = [np.empty((0, network.embedding_dim), dtype=np.float32)]
    done = 0
    chunks = embed_chunks(network, source, device=device, precision=precision, workers=workers)
    with closing(chunks):
        for chunk in chunks:
            if chunk.bad:
                raise DmlError(chunk.bad[0].reason)
            parts.append(chunk.embeddings)
            done += len(chunk.embeddings)
            if progress is not None:
                progress(done, len(items))
    return np.concatenate(parts)


def items_of_rank(num_items: int, ranks: Ranks) -> npt.NDArray[np.int64]:
    """Return the items that this rank must embed, (n,).

    Ranks embed whole chunks, so that the last bits don't depend on the number of ranks.
    """
    passes = -(-num_items // CHUNK_SIZE)
    begin, end = (
        passes * rank // ranks.world_size * CHUNK_SIZE for rank in (ranks.rank, ranks.rank + 1)
    )
    return np.arange(begin, min(end, num_items))


def align_labels(split: Split, reference: Split) -> npt.NDArray[np.int64]:
    """Map a gallery's labels, (N,), to the labels of the query classes of the same name, or to new
    labels.
    """
    ids = {name: label for label, name in enumerate(reference.class_names)}
    mapping = np.array(
        [ids.setdefault(name, len(ids)) for name in split.class_names], dtype=np.int64
    )
    return mapping[split.labels]


def groups_of(split: Split | None) -> npt.NDArray[Any] | None:
    """Return the groups of a split's items, (N,), or None if a split isn't given or doesn't define
    groups.
    """
    return split.groups if isinstance(split, GroupedSplit) else None


def match_sides(
    queries: Split, gallery: Split | None = None, matches: Labels | Relevance | None = None
) -> tuple[Labels | Relevance | None, Labels | None]:
    """Return the matches of queries and gallery for an evaluation, or None if labels suffice.

    For a `RelatedDataset`, pass the queries' `matches`. Raise TypeError or ValueError if groups
    don't fit a split.
    """
    groups = groups_of(queries), groups_of(gallery)
    if isinstance(matches, Relevance) or (matches is None and all(each is None for each in groups)):
        return matches, None
    items = None if gallery is None else Labels(align_labels(gallery, queries), groups[1])
    return Labels(queries.labels, groups[0]) if matches is None else matches, items
