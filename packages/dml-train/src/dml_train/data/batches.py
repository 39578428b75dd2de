"""Batches: a step's images and labels as a function of the step, loaded ahead by as many processes as asked for.

Shapes: `B` rows of the global batch, `R` rows of this rank's part.
"""

from __future__ import annotations

import atexit
import multiprocessing
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dml_core import BatchSampler, DmlError, Split
from dml_train.processes.loaders import LoaderContext, loaders_start
from dml_train.seeds import row_seeds

Item = TypeVar("Item")


class Batch(NamedTuple):
    """What one rank needs for one step."""

    step: int  # counted from 0
    images: Tensor  # (R, channels, height, width) float32, this rank's rows
    labels: Tensor  # (B,) int64, of the global batch


class LoadFailure(NamedTuple):
    """Why something could not be loaded. It travels as a value: an exception would lose its words on the way."""

    message: str


class StepBatches(Dataset[Batch | LoadFailure]):
    """The batches of a run by step.

    Rank r of W gets rows r·B/W to (r+1)·B/W of the global batch.

    Args:
        split: what is trained on.
        sampler: gives the global batches.
        seed: the run's seed.
        rank, world_size: which part is wanted, of how many.
    """

    def __init__(
        self, split: Split, sampler: BatchSampler, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.split, self.sampler, self.seed = split, sampler, seed
        self.rank, self.world_size = rank, world_size

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """The items of the step's global batch, (B,)."""
        return self.sampler.batch_at(*divmod(step, len(self.sampler)))

    def __getitem__(self, step: int) -> Batch | LoadFailure:
        """The step's batch."""
        indices_B = self.indices(step)
        share, rest = divmod(len(indices_B), self.world_size)
        if rest:
            return LoadFailure(
                f"the batch of step {step} has {len(indices_B)} images, which {self.world_size} ranks can't share "
                f"equally; choose a batch size that is a multiple of {self.world_size}"
            )
        rows_R = np.arange(self.rank * share, (self.rank + 1) * share)
        images = _load(self.split, indices_B[rows_R], row_seeds(self.seed, step, rows_R))
        if isinstance(images, LoadFailure):
            return images
        return Batch(step, images, torch.from_numpy(self.split.labels[indices_B]))


def load_ahead(
    source: Dataset[Item | LoadFailure], places: Sequence[int], workers: int, *, pin: bool
) -> Iterator[Item]:
    """``source[place]`` for each of the places, in their order.

    Args:
        source: what is asked; with workers it is sent to them, so it must pickle.
        places: which items.
        workers: how many processes load ahead; 0: none, each item is loaded when it is asked for.
        pin: whether to put tensors into memory from which copies to a GPU can overlap.

    Raises:
        DmlError: if an item can't be loaded, with the reason; if a worker can't be started, or dies.
    """
    loader = DataLoader(
        source,
        batch_size=None,
        sampler=places,
        num_workers=workers,
        multiprocessing_context=LoaderContext() if workers else None,
        collate_fn=_unchanged,
        pin_memory=pin,
    )
    others = multiprocessing.active_children()
    try:
        with loaders_start():
            items = iter(loader)
    except OSError as error:  # too many open files, no place for semaphores, a name too long for a socket
        raise DmlError(
            f"can't start loader processes: {error}. If the path of the folder for temporary files is longer than 75 "
            f"characters ({tempfile.gettempdir()}), let TMPDIR name another; [training] workers = 0 needs no processes"
        ) from error
    helpers = [process for process in multiprocessing.active_children() if process not in others]

    def end() -> None:
        for process in helpers:
            process.kill()
            process.join()

    # If nobody closes this generator. At its end, Python asks for theirs by a signal that they don't hear, and waits.
    atexit.register(end)
    try:
        for item in items:
            if isinstance(item, LoadFailure):
                raise DmlError(item.message)
            yield item
    except RuntimeError as error:
        if "DataLoader worker" in str(error):
            raise DmlError(
                f"a loader process died: {error}. If it was killed for memory, use fewer [training] workers"
            ) from error
        raise
    finally:
        del items  # asks the helpers to end, unless a traceback still holds it
        end()
        atexit.unregister(end)


def _unchanged(item: Item) -> Item:
    return item


def _load(
    split: Split, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None
) -> Tensor | LoadFailure:
    try:
        return split.load(indices, seeds)
    except DmlError as error:  # says itself which item it was
        return LoadFailure(str(error))
    except Exception:  # a third party's data set may raise anything
        trace = traceback.format_exc()
    for index in indices.tolist():  # one by one, to name the bad item
        result = load_item(split, index)
        if isinstance(result, LoadFailure):
            return result
    return LoadFailure(f"items {indices.tolist()} can't be loaded together, though each can alone:\n{trace}")


def load_item(split: Split, index: int, name: str | None = None) -> Tensor | LoadFailure:
    """Load one image without augmentation, (1, channels, height, width), or say why it can't be loaded.

    Args:
        split: the images.
        index: the item.
        name: how the message calls it; default: by index and class.
    """
    try:
        return split.load(np.array([index]), None)
    except DmlError as error:  # names the item itself
        return LoadFailure(str(error))
    except Exception as error:  # a third party's data set may raise anything
        called = name or f"item {index} (class {split.class_names[split.labels[index]]!r})"
        return LoadFailure(f"{called} can't be loaded: {type(error).__name__}: {error}")
