"""Batches: images and labels that depend only on the step, loaded ahead by loader processes.

Shapes: `B` rows of the global batch, `R` rows of this rank's part.
"""

from __future__ import annotations

import atexit
import multiprocessing
import tempfile
import traceback
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dml_core import BatchSampler, DmlError, InvalidOption, Split
from dml_train.processes.limits import MOST_PROCESSES
from dml_train.processes.loaders import LoaderContext, block_signals_for_loaders
from dml_train.seeds import row_seeds

Item = TypeVar("Item")


class Batch(NamedTuple):
    """A rank's data for a step."""

    step: int  # counted from 0
    images: Tensor  # (R, channels, height, width) float32, this rank's rows
    labels: Tensor  # (B,) int64, for the global batch


class LoadFailure(NamedTuple):
    """The reason why an item failed to load; returned as a value, since DataLoader rewrites an
    exception's message.
    """

    message: str


class StepBatches(Dataset[Batch | LoadFailure]):
    """The batches of a run by step, determined by the run's seed.

    The global batch contains each item of the sampler's batch `views` times in a row, with
    different augmentations. Rank r of W receives rows r·B/W to (r+1)·B/W.
    """

    def __init__(
        self,
        split: Split,
        sampler: BatchSampler,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        views: int = 1,
    ) -> None:
        self.split, self.sampler, self.seed, self.views = split, sampler, seed, views
        self.rank, self.world_size = rank, world_size

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """Return the items of the step's global batch, (B,) int64."""
        return np.repeat(self.sampler.batch_at(*divmod(step, len(self.sampler))), self.views)

    def __getitem__(self, step: int) -> Batch | LoadFailure:
        """Load this rank's part of the batch at `step`."""
        indices_B = self.indices(step)
        share, rest = divmod(len(indices_B), self.world_size)
        if rest:
            return LoadFailure(
                f"the batch of step {step} has {len(indices_B)} images, which {self.world_size} "
                "ranks can't share equally; choose a batch size that is a multiple of "
                f"{self.world_size}"
            )
        rows_R = np.arange(self.rank * share, (self.rank + 1) * share)
        images = load_items(self.split, indices_B[rows_R], row_seeds(self.seed, step, rows_R))
        if isinstance(images, LoadFailure):
            return images
        return Batch(step, images, torch.from_numpy(self.split.labels[indices_B]))


def load_ahead(
    source: Dataset[Item | LoadFailure], places: Sequence[int], workers: int, *, pin: bool
) -> Generator[Item, None, None]:
    """Yield ``source[place]`` for all places, in order.

    Raise a `DmlError` if an item can't be loaded, a worker can't start or dies, or `workers`
    exceeds `MOST_PROCESSES`.

    Args:
        source: the items; must support pickle if there are workers.
        places: indices into `source`.
        workers: number of processes that load ahead; if 0, items are loaded in this process when
            requested.
        pin: whether to pin tensors in memory, used to overlap copies to a GPU.
    """
    if not 0 <= workers <= MOST_PROCESSES:
        raise InvalidOption(f"workers is {workers}; expected 0 to {MOST_PROCESSES} processes")
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
        with block_signals_for_loaders():
            items = iter(loader)
    except (
        OSError
    ) as error:  # too many open files, a lack of semaphores, a name too long for a socket
        raise DmlError(
            f"can't start loader processes: {error}. If the path of the folder for temporary files "
            f"is longer than 75 characters ({tempfile.gettempdir()}), set TMPDIR to a shorter one; "
            "[training] workers = 0 needs no processes"
        ) from error
    loaders = [process for process in multiprocessing.active_children() if process not in others]

    def end() -> None:
        for process in loaders:
            process.kill()
            process.join()

    # If the generator isn't closed, Python will send a SIGTERM to the loaders at exit, which they
    # block, and wait.
    atexit.register(end)
    try:
        for item in items:
            if isinstance(item, LoadFailure):
                raise DmlError(item.message)
            yield item
    except RuntimeError as error:
        if "DataLoader worker" in str(error):
            raise DmlError(
                f"a loader process died: {error}. If it was killed for memory, use fewer "
                "[training] workers"
            ) from error
        raise
    finally:
        del items  # this will end the loaders, unless a traceback still refers to the iterator
        end()
        atexit.unregister(end)


def _unchanged(item: Item) -> Item:
    return item


def load_items(
    split: Split, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None
) -> Tensor | LoadFailure:
    """Load items (n, channels, height, width), augmented if there are seeds, or return the reason
    for a failure.
    """
    try:
        return split.load(indices, seeds)
    except DmlError as error:  # the message names the item
        return LoadFailure(str(error))
    except Exception:  # a third party's data set may raise anything
        trace = traceback.format_exc()
    for index in indices.tolist():  # load one by one, to name the bad item
        result = load_item(split, index)
        if isinstance(result, LoadFailure):
            return result
    return LoadFailure(
        f"items {indices.tolist()} can't be loaded together, only separately:\n{trace}"
    )


def load_item(split: Split, index: int, name: str | None = None) -> Tensor | LoadFailure:
    """Load an unaugmented image, (1, channels, height, width), or return a failure with `name` or
    index and class.
    """
    try:
        return split.load(np.array([index]), None)
    except DmlError as error:  # the message names the item
        return LoadFailure(str(error))
    except Exception as error:  # a third party's data set may raise anything
        called = name or f"item {index} (class {split.class_names[split.labels[index]]!r})"
        return LoadFailure(f"{called} can't be loaded: {type(error).__name__}: {error}")
