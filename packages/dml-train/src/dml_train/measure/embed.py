"""From a split to its embeddings, and from those to figures.

Shapes: `N` items, `B` images of one pass, `D` embedding dimension, `C` classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core import DmlError, Split
from dml_train.data.batches import Chunks, load_ahead
from dml_train.networks.model import EmbeddingModel
from dml_train.ranks.ranks import Ranks

_CHUNK = 256  # images a forward pass


@torch.no_grad()
def forward(
    model: EmbeddingModel, images: Tensor, device: torch.device, precision: torch.dtype
) -> npt.NDArray[np.float32]:
    """One pass of images through the network, (B, D) float32; the network computes in `precision`, by autocast."""
    with torch.autocast(device.type, precision, enabled=precision != torch.float32):
        embeddings = model(images.to(device, non_blocking=device.type == "cuda"))
    embeddings_BD: npt.NDArray[np.float32] = embeddings.float().cpu().numpy()
    return embeddings_BD


def embed(
    model: EmbeddingModel,
    split: Split,
    *,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    workers: int = 0,
    items: npt.NDArray[np.int64] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.float32]:
    """The embeddings of a split's items, (N, D) float32, in the order of the items.

    The model is left in the mode, training or evaluation, in which it came.

    Args:
        model: images to embeddings.
        split: what is embedded, without augmentation.
        device: where the model is.
        precision: in which the network computes, by autocast if not float32.
        workers: processes that load ahead.
        items: (N,) which items; default all.
        progress: called with how many are done, of how many.

    Raises:
        DmlError: if an item can't be loaded, or an embedding isn't finite, with the item's index.
    """
    items = np.arange(len(split)) if items is None else items
    was_training = model.training
    model.eval()
    chunks = Chunks(split, items, _CHUNK)
    parts = [np.empty((0, model.head.embedding_dim), dtype=np.float32)]
    done = 0
    cuda = device.type == "cuda"
    try:
        for images in load_ahead(chunks, range(len(chunks)), workers, pin=cuda):
            embeddings_nD = forward(model, images, device, precision)
            if not (finite := np.isfinite(embeddings_nD).all(axis=1)).all():
                item = items[done + int(finite.argmin())]
                raise DmlError(
                    f"the embedding of item {item} (class {split.class_names[split.labels[item]]!r}) isn't finite; "
                    "the network's weights or that image are damaged"
                )
            parts.append(embeddings_nD)
            done += len(embeddings_nD)
            if progress is not None:
                progress(done, len(items))
    finally:
        model.train(was_training)
    return np.concatenate(parts)


def items_of_rank(num_items: int, ranks: Ranks) -> npt.NDArray[np.int64]:
    """The items that this rank embeds, (n,): whole passes of the network.

    The last bits of an embedding depend on how many images its pass has. So passes are divided and not items, and
    any number of ranks gets what one gets.
    """
    passes = -(-num_items // _CHUNK)
    begin, end = (passes * rank // ranks.world_size * _CHUNK for rank in (ranks.rank, ranks.rank + 1))
    return np.arange(begin, min(end, num_items))


def align_labels(split: Split, reference: Split) -> npt.NDArray[np.int64]:
    """A gallery's labels as those of the queries' split, by class name, (N,).

    Classes that the queries don't have get ids of their own behind those that they have.
    """
    ids = {name: label for label, name in enumerate(reference.class_names)}
    mapping = np.array([ids.setdefault(name, len(ids)) for name in split.class_names], dtype=np.int64)
    return mapping[split.labels]
