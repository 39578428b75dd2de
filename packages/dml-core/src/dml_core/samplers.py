"""Samplers of global batches that depend only on (seed, epoch, position).

So a run can resume in the middle of an epoch without replay, loaders can run ahead, and ranks draw
identical batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# A larger batch is almost certainly a typo: drawing it takes minutes, and no device holds its
# images.
MOST_IN_BATCH = 1_000_000
_CLASSES, _IMAGES, _ORDER = range(3)  # independent streams of random numbers


class EpochSampler(ABC):
    """A base class of samplers that iterate epoch by epoch, from a position that can be saved and
    restored.

    Use ``for batch in sampler`` to iterate over the remaining batches of the current epoch, as
    lists of indices. Then the position moves to the start of the next epoch.

    Args:
        labels: integers of shape (N,), the classes of the items.
        seed: at least 0.

    Raises:
        ValueError: if labels are empty, not integers or not one-dimensional, or if the seed is
            below 0.
    """

    def __init__(self, labels: npt.ArrayLike | Sequence[int], seed: int) -> None:
        self.labels = _check_labels(labels)
        self.seed = check_at_least(0, seed=seed)
        self.epoch = 0
        self.position = 0  # the position of the next batch

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches per epoch."""

    @abstractmethod
    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Draw the batch at `position` (0 to ``len(self) - 1``) of `epoch`, as int64 indices in any
        order.
        """

    def __iter__(self) -> Iterator[list[int]]:
        while self.position < len(self):
            batch = self.batch_at(self.epoch, self.position)
            self.position += 1
            yield batch.tolist()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`, which counts from 0.

        Raises:
            ValueError: if `epoch` isn't an integer of at least 0.
        """
        self.epoch, self.position = check_at_least(0, epoch=epoch), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the settings and data that it depends on."""
        return {"epoch": self.epoch, "position": self.position} | self._identity()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved position.

        Raises:
            ValueError: if the state was saved with different data or settings; the message lists
                the differences.
        """
        mine = self._identity()
        if differs := [
            f"{key} is {state.get(key)} in the state and {value} here"
            for key, value in mine.items()
            if state.get(key) != value
        ]:
            raise ValueError(
                f"the saved state belongs to a different sampler: {'; '.join(differs)}; make the "
                "sampler with the saved settings and data"
            )
        self.epoch, self.position = state["epoch"], state["position"]

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "num_items": len(self.labels), "batches_per_epoch": len(self)}

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


class ClassBalancedSampler(EpochSampler):
    """A sampler of batches of C classes with K images per class.

    Use it when all classes should be drawn equally often. Classes are dealt like cards: a shuffled
    deck of all classes is cut into hands of C, and shuffled again if fewer than C classes are left.
    So classes are drawn equally often (to within one draw per deck), and at most once per batch.
    The K images of a class are drawn without replacement. If a class has n < K images, all are
    drawn again and again, so that an image is in the batch ⌊K/n⌋ or ⌈K/n⌉ times.

    Args:
        labels: integers of shape (N,), the classes of the items.
        classes_per_batch: C, from 1 to the number of classes.
        images_per_class: K, at least 1; a batch must not have more than `MOST_IN_BATCH` images.
        seed: at least 0, the default. A batch depends only on seed, epoch and position.
        batches_per_epoch: by default, N // (C * K), but at least 1, so that an epoch has about N
            images.

    Raises:
        ValueError: if labels are empty, not integers or not one-dimensional, a size is below 1, C
            exceeds the number of classes, or a batch would have more than `MOST_IN_BATCH` images.

    Example:
        >>> from dml_core import ClassBalancedSampler
        >>> labels = [0, 0, 0, 1, 1, 1, 2, 2, 2]
        >>> sampler = ClassBalancedSampler(labels, classes_per_batch=2, images_per_class=2, seed=0)
        >>> batch = sampler.batch_at(0, 0)
        >>> sorted(labels[i] for i in batch).count(labels[batch[0]])
        2
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
        self.classes_per_batch = check_at_least(1, classes_per_batch=classes_per_batch)
        self.images_per_class = check_at_least(1, images_per_class=images_per_class)
        # Store the items sorted by class, and the first position per class. With a million classes,
        # an array per class would take seconds to make, and to send to loader processes.
        self._by_class = np.argsort(self.labels, kind="stable")
        _, starts = np.unique(self.labels[self._by_class], return_index=True)
        self._starts = np.append(starts, len(self.labels))
        self._num_classes = len(starts)
        # Cache the latest deck: epoch, number and order.
        self._deck: tuple[int, int, npt.NDArray[np.int64]] | None = None
        if classes_per_batch > self._num_classes:
            raise ValueError(
                f"classes_per_batch is {classes_per_batch}; expected at most {self._num_classes}, "
                f"the number of classes among the {len(self.labels)} labels"
            )
        size = classes_per_batch * images_per_class
        if size > MOST_IN_BATCH:
            raise ValueError(
                f"classes_per_batch is {classes_per_batch} and images_per_class is "
                f"{images_per_class}, a batch of {size} images; expected at most {MOST_IN_BATCH}"
            )
        default = max(1, len(self.labels) // size)
        self._length = (
            default
            if batches_per_epoch is None
            else check_at_least(1, batches_per_epoch=batches_per_epoch)
        )

    def __len__(self) -> int:
        return self._length

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Draw the batch's (C * K,) int64 indices: K of the first class, K of the second, …"""
        hands = self._num_classes // self.classes_per_batch
        deck = self._shuffle(epoch, position // hands)
        first = (position % hands) * self.classes_per_batch
        random = self._random(epoch, _IMAGES, position)
        k = self.images_per_class
        chosen = [
            random.choice(members, min(k - start, len(members)), replace=False)
            for c in deck[first : first + self.classes_per_batch]
            for members in [self._by_class[self._starts[c] : self._starts[c + 1]]]
            for start in range(0, k, len(members))
        ]
        return np.concatenate(chosen)

    def _shuffle(self, epoch: int, number: int) -> npt.NDArray[np.int64]:
        """Return the classes in the order of deck `number`."""
        if self._deck is None or self._deck[:2] != (epoch, number):
            order = self._random(epoch, _CLASSES, number).permutation(self._num_classes)
            self._deck = (epoch, number, order)
        return self._deck[2]

    def _identity(self) -> dict[str, int]:
        return super()._identity() | {
            "classes_per_batch": self.classes_per_batch,
            "images_per_class": self.images_per_class,
        }


class ShuffledSampler(EpochSampler):
    """A sampler that draws items once per epoch in random order; an incomplete last batch is not
    used.

    Args:
        labels: integers of shape (N,), the classes of the items; only N is used.
        batch_size: from 1 to N.
        seed: at least 0, the default. A batch depends only on seed, epoch and position.

    Raises:
        ValueError: if labels are empty, not integers or not one-dimensional, or the batch size is
            outside [1, N].
    """

    def __init__(self, labels: npt.ArrayLike, batch_size: int, seed: int = 0) -> None:
        super().__init__(labels, seed)
        self.batch_size = check_at_least(1, batch_size=batch_size)
        if batch_size > len(self.labels):
            raise ValueError(
                f"batch_size is {batch_size}; expected at most {len(self.labels)}, the number of "
                "items"
            )
        # Cache the order of the latest epoch.
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def batch_at(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Draw the batch's (batch_size,) int64 indices."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._random(epoch, _ORDER).permutation(len(self.labels)))
        return self._order[1][position * self.batch_size : (position + 1) * self.batch_size]

    def _identity(self) -> dict[str, int]:
        return super()._identity() | {"batch_size": self.batch_size}


def _check_labels(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"labels has shape {array.shape}; expected (N,) with N at least 1")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"labels has dtype {array.dtype}; expected integers")
    return array.astype(np.int64, copy=False)


def check_at_least(least: int, **named: int) -> int:
    """Check an integer, given by name, and return it.

    Raises:
        ValueError: if it isn't an integer of at least `least`.
    """
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; expected an integer of at least {least}")
    return int(value)
