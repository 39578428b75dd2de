"""Samplers of global batches: every batch is a function of (seed, epoch, position) and of nothing else.

So nothing has to be replayed to resume in the middle of an epoch, loader processes may run ahead, and any
number of ranks that share a global batch see the same one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

_CLASSES, _IMAGES, _ORDER = range(3)  # streams of random numbers that must not depend on one another


class EpochSampler(ABC):
    """Iterates a sampler's batches epoch by epoch, from a place that can be saved and restored.

    ``for batch in sampler`` gives the rest of the current epoch as lists of indices, and then moves on to the
    next epoch.

    Args:
        labels: (N,) integer, the class of each item.
        seed: at least 0.

    Raises:
        ValueError: labels that are empty, not integer or not one-dimensional; a seed below 0.
    """

    def __init__(self, labels: npt.ArrayLike | Sequence[int], seed: int) -> None:
        self.labels = _checked_labels(labels)
        self.seed = _at_least(0, seed=seed)
        self.epoch = 0
        self.position = 0  # of the next batch to hand out

    @abstractmethod
    def __len__(self) -> int:
        """Batches an epoch."""

    @abstractmethod
    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """The indices of the batch at `position`, from 0 to ``len(self) - 1``, of `epoch`, int64. In any order."""

    def __iter__(self) -> Iterator[list[int]]:
        while self.position < len(self):
            batch = self.batch_at(self.epoch, self.position)
            self.position += 1
            yield batch.tolist()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, counted from 0.

        Raises:
            ValueError: if it isn't an integer of at least 0.
        """
        self.epoch, self.position = _at_least(0, epoch=epoch), 0

    def state_dict(self) -> dict[str, int]:
        """The place in the iteration, and what it is a place in."""
        return {"epoch": self.epoch, "position": self.position} | self._identity()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a saved place.

        Raises:
            ValueError: if the state is that of a sampler over other data or with other settings, naming them.
        """
        mine = self._identity()
        if differs := [
            f"{key} is {state.get(key)} there and {value} here"
            for key, value in mine.items()
            if state.get(key) != value
        ]:
            raise ValueError(f"the saved state is another sampler's: {'; '.join(differs)}")
        self.epoch, self.position = state["epoch"], state["position"]

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "num_items": len(self.labels), "batches_per_epoch": len(self)}

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


class ClassBalancedSampler(EpochSampler):
    """Batches of C classes with K images each.

    Classes are dealt out like cards: a shuffled deck of all classes is cut into hands of C, and shuffled anew
    when fewer than C are left, so that all classes come equally often (to within one a deck) and no batch has
    a class twice. The K images of a class are drawn without replacement; a class that has fewer than K is
    drawn with replacement, that class alone.

    Args:
        labels: (N,) integer, the class of each item.
        classes_per_batch: C, from 1 to the number of classes.
        images_per_class: K, at least 1.
        seed: at least 0; with the epoch and the position it determines a batch.
        batches_per_epoch: default N // (C * K), at least 1: about as many images as there are.

    Raises:
        ValueError: labels that are empty, not integer or not one-dimensional; a size below 1; more classes
            asked for than there are.
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        classes_per_batch: int,
        images_per_class: int,
        seed: int = 0,
        batches_per_epoch: int | None = None,
    ) -> None:
        super().__init__(labels, seed)
        self.classes_per_batch = _at_least(1, classes_per_batch=classes_per_batch)
        self.images_per_class = _at_least(1, images_per_class=images_per_class)
        order = np.argsort(self.labels, kind="stable")
        _, starts = np.unique(self.labels[order], return_index=True)
        self._members = np.split(order, starts[1:])
        if classes_per_batch > len(self._members):
            raise ValueError(
                f"classes_per_batch is {classes_per_batch}; expected at most {len(self._members)}, the number of "
                f"classes among the {len(self.labels)} labels"
            )
        size = classes_per_batch * images_per_class
        default = max(1, len(self.labels) // size)
        self._length = (
            default if batches_per_epoch is None else _at_least(1, batches_per_epoch=batches_per_epoch)
        )

    def __len__(self) -> int:
        return self._length

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """The batch's indices, (C * K,) int64: K of the first class, K of the second, …"""
        hands = len(self._members) // self.classes_per_batch
        deck = self._random(epoch, _CLASSES, position // hands).permutation(len(self._members))
        first = (position % hands) * self.classes_per_batch
        random = self._random(epoch, _IMAGES, position)
        k = self.images_per_class
        chosen = [
            random.choice(members, k, replace=len(members) < k)
            for members in (self._members[c] for c in deck[first : first + self.classes_per_batch])
        ]
        return np.concatenate(chosen)

    def _identity(self) -> dict[str, int]:
        return super()._identity() | {
            "classes_per_batch": self.classes_per_batch,
            "images_per_class": self.images_per_class,
        }


class ShuffledSampler(EpochSampler):
    """Every item once an epoch in a random order; what doesn't fill a last batch is left to the next epoch's luck.

    Args:
        labels: (N,) integer, the class of each item; only their number matters here.
        batch_size: from 1 to N.
        seed: at least 0; with the epoch and the position it determines a batch.

    Raises:
        ValueError: labels that are empty, not integer or not one-dimensional; a batch size outside [1, N].
    """

    def __init__(self, labels: npt.ArrayLike, batch_size: int, seed: int = 0) -> None:
        super().__init__(labels, seed)
        self.batch_size = _at_least(1, batch_size=batch_size)
        if batch_size > len(self.labels):
            raise ValueError(
                f"batch_size is {batch_size}; expected at most {len(self.labels)}, the number of items"
            )
        # The epoch last asked for, and its order.
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """The batch's indices, (batch_size,) int64."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._random(epoch, _ORDER).permutation(len(self.labels)))
        return self._order[1][position * self.batch_size : (position + 1) * self.batch_size]

    def _identity(self) -> dict[str, int]:
        return super()._identity() | {"batch_size": self.batch_size}


def _checked_labels(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"labels has shape {array.shape}; expected (N,) with N at least 1")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"labels has dtype {array.dtype}; expected integers")
    return array.astype(np.int64, copy=False)


def _at_least(least: int, **named: int) -> int:
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; expected an integer of at least {least}")
    return int(value)
