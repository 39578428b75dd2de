"""From images to their embeddings.

Shapes: `N` items, `B` images of one forward pass, `D` embedding dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core import DmlError, GroupedSplit, Labels, Relevance, Split
from dml_train.data.batches import load_ahead
from dml_train.measure.chunks import CHUNK_SIZE, BadImage, ImageChunks, drop_bad, split_chunks
from dml_train.ranks.ranks import Ranks


class Network(Protocol):
    """An `EmbeddingModel`, or another module from images to embeddings."""

    training: bool

    @property
    def embedding_dim(self) -> int:
        """D."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Set training or evaluation mode."""
        ...

    def eval(self) -> Any:
        """Set evaluation mode."""
        ...

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        """Map images to (B, D)."""
        ...


class EmbeddedChunk(NamedTuple):
    """The embeddings of a chunk's images in their order, without the bad ones."""

    embeddings: npt.NDArray[np.float32]  # (B, D)
    bad: Sequence[BadImage]


@torch.no_grad()
def forward(
    network: Network, images: Tensor, device: torch.device, precision: torch.dtype
) -> npt.NDArray[np.float32]:
    """Pass images through the network, (B, D) float32; it computes in `precision`, by autocast."""
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
    """Embed images chunk by chunk, one forward pass for each chunk.

    The network computes in evaluation mode; afterwards its mode, training or evaluation, is as before.

    Args:
        network: images to embeddings.
        source: the images.
        device: the network's device.
        precision: the network computes in it, by autocast if it isn't float32.
        workers: number of processes that load ahead.

    Raises:
        DmlError: if a chunk can't be loaded for another reason than its bad images, or an embedding isn't finite.
    """
    was_training = network.training
    network.eval()
    loaded_chunks = load_ahead(source, range(len(source)), workers, pin=device.type == "cuda")
    try:
        for number, loaded in enumerate(loaded_chunks):
            if loaded.images is None:
                empty_0D = np.empty((0, network.embedding_dim), dtype=np.float32)
                yield EmbeddedChunk(empty_0D, loaded.bad)
                continue
            embeddings_BD = forward(network, loaded.images, device, precision)
            if not (finite := np.isfinite(embeddings_BD).all(axis=1)).all():
                item = drop_bad(source.chunks[number].tolist(), loaded.bad)[int(finite.argmin())]
                raise DmlError(
                    f"the embedding of {source.describe(item)} isn't finite; "
                    "the network's weights or that image are damaged"
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
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.float32]:
    """Embed items of a split without augmentation, (N, D) float32, in the order of the items.

    The network's mode, training or evaluation, stays as it is.

    Args:
        network: images to embeddings.
        split: the images.
        device: the network's device.
        precision: the network computes in it, by autocast if it isn't float32.
        workers: number of processes that load ahead.
        items: (N,) the items' indices in the split; default: all.
        progress: called with the number of embedded items and the number of all.

    Raises:
        DmlError: if an item can't be loaded or its embedding isn't finite, with the item's index.
    """
    items = np.arange(len(split)) if items is None else items
    source = ImageChunks(split, split_chunks(items))
    parts = [np.empty((0, network.embedding_dim), dtype=np.float32)]
    done = 0
    with closing(
        embed_chunks(network, source, device=device, precision=precision, workers=workers)
    ) as chunks:
        for chunk in chunks:
            if chunk.bad:
                raise DmlError(chunk.bad[0].reason)
            parts.append(chunk.embeddings)
            done += len(chunk.embeddings)
            if progress is not None:
                progress(done, len(items))
    return np.concatenate(parts)


def items_of_rank(num_items: int, ranks: Ranks) -> npt.NDArray[np.int64]:
    """Return the items that this rank embeds, (n,): whole forward passes.

    The last bits of an embedding depend on the number of images in its pass. So passes are divided among ranks, not
    items, and any number of ranks gives the embeddings of one.
    """
    passes = -(-num_items // CHUNK_SIZE)
    begin, end = (passes * rank // ranks.world_size * CHUNK_SIZE for rank in (ranks.rank, ranks.rank + 1))
    return np.arange(begin, min(end, num_items))


def align_labels(split: Split, reference: Split) -> npt.NDArray[np.int64]:
    """Express a gallery's labels as those of the queries' split, by class name, (N,).

    Classes without queries get ids after those of all others.
    """
    ids = {name: label for label, name in enumerate(reference.class_names)}
    mapping = np.array([ids.setdefault(name, len(ids)) for name in split.class_names], dtype=np.int64)
    return mapping[split.labels]


def groups_of(split: Split | None) -> npt.NDArray[Any] | None:
    """Return the groups of a split's items, (N,); None without a split, or if its items have none."""
    return split.groups if isinstance(split, GroupedSplit) else None


def match_sides(
    queries: Split, gallery: Split | None = None, matches: Labels | Relevance | None = None
) -> tuple[Labels | Relevance | None, Labels | None]:
    """Return who matches whom as both sides of an evaluation take it; None where labels alone tell.

    Args:
        queries, gallery: the splits, perhaps with groups.
        matches: of the queries, if the data set has any (`RelatedDataset`).

    Raises:
        TypeError, ValueError: if the groups don't fit their split.
    """
    groups = groups_of(queries), groups_of(gallery)
    if isinstance(matches, Relevance) or (matches is None and all(each is None for each in groups)):
        return matches, None
    items = None if gallery is None else Labels(align_labels(gallery, queries), groups[1])
    return Labels(queries.labels, groups[0]) if matches is None else matches, items
