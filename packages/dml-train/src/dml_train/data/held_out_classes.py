"""Validation on classes that aren't trained on: held out of the training split, watched, and the best kept.

The test classes stay unseen until the end; a number of epochs, or a weight, that they chose would flatter them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dml_core import DmlError, Split
from dml_train.seeds import VALIDATION, derive


class ClassSubset:
    """Some classes of a split, as a split of its own.

    Args:
        split: all of them.
        classes: (C,) which, in the order of their new labels.
    """

    def __init__(self, split: Split, classes: npt.NDArray[np.int64]) -> None:
        new_labels = np.full(len(split.class_names), -1, dtype=np.int64)
        new_labels[classes] = np.arange(len(classes))
        self._split = split
        self._items = np.flatnonzero(new_labels[split.labels] >= 0)
        self.labels: npt.NDArray[np.int64] = new_labels[split.labels[self._items]]
        self.class_names: Sequence[str] = [split.class_names[c] for c in classes]

    def __len__(self) -> int:
        """How many items these classes have."""
        return len(self._items)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """The network's input for these items, as the whole split gives it."""
        return self._split.load(self._items[indices], seeds)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Item `index` as a person sees it."""
        return self._split.picture(int(self._items[index]))


def hold_out(split: Split, fraction: float, seed: int) -> tuple[Split, Split | None]:
    """What is left to train on, and the classes held out for validation; None if the fraction is 0.

    Args:
        split: the training split.
        fraction: of its classes, in [0, 1); rounded to at least one class on either side.
        seed: with it the choice repeats itself.

    Raises:
        DmlError: if there are fewer than two classes.
    """
    if fraction == 0:
        return split, None
    count = len(split.class_names)
    if count < 2:
        raise DmlError(
            f"validation.class_fraction is {fraction}, and there is {count} class to train on; expected 2 or more"
        )
    held = min(count - 1, max(1, round(fraction * count)))
    order = np.random.default_rng(derive(seed, VALIDATION)).permutation(count)
    return ClassSubset(split, np.sort(order[held:])), ClassSubset(split, np.sort(order[:held]))


def hold_out_fold(split: Split, fold: int, folds: int) -> tuple[Split, Split]:
    """What is left to train on, and the classes of one of several equal parts, in the order of the split's classes.

    The parts are disjoint and consecutive, and all of them together are the split; the first ones are larger by one
    class where C isn't a multiple of their number.

    Source: Musgrave, Belongie & Lim 2020, A Metric Learning Reality Check (with four parts).

    Args:
        split: the training split, C classes.
        fold: which part, from 0.
        folds: how many parts.

    Raises:
        DmlError: if there are fewer classes than parts.
    """
    count = len(split.class_names)
    if count < folds:
        raise DmlError(
            f"validation.folds is {folds}, and there are {count} classes to train on; expected at most as many folds"
        )
    parts = np.array_split(np.arange(count), folds)
    held = parts.pop(fold)
    return ClassSubset(split, np.concatenate(parts)), ClassSubset(split, held)
