"""Hold out training classes for validation, since selection on the test classes would bias
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dml_core import DmlError, GroupedSplit, Split
from dml_train.seeds import VALIDATION, derive


class ClassSubset:
    """A `Split` with some classes of a larger split, and with `groups` if the larger split defines
    groups.

    `classes` are labels (C,) in the larger split, in the order of the new labels.
    """

    groups: npt.NDArray[Any]

    def __init__(self, split: Split, classes: npt.NDArray[np.int64]) -> None:
        new_labels = np.full(len(split.class_names), -1, dtype=np.int64)
        new_labels[classes] = np.arange(len(classes))
        self._split = split
        self._items = np.flatnonzero(new_labels[split.labels] >= 0)
        self.labels: npt.NDArray[np.int64] = new_labels[split.labels[self._items]]
        self.class_names: Sequence[str] = [split.class_names[c] for c in classes]
        if isinstance(split, GroupedSplit):
            self.groups = split.groups[self._items]

    def __len__(self) -> int:
        """Return the number of items of these classes."""
        return len(self._items)

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> Tensor:
        """Load the network's input for these items from the full split."""
        return self._split.load(self._items[indices], seeds)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Render item `index` for display."""
        return self._split.picture(int(self._items[index]))


def hold_out(split: Split, fraction: float, seed: int) -> tuple[Split, Split | None]:
    """Hold out random classes for validation; return the training and the validation split.

    Args:
        split: the training split; raises a `DmlError` if there are fewer than 2 classes.
        fraction: fraction of classes to hold out, in [0, 1), rounded so that neither side is empty;
            0 for none.
        seed: determines the choice.
    """
    if fraction == 0:
        return split, None
    count = len(split.class_names)
    if count < 2:
        raise DmlError(
            f"validation.class_fraction is {fraction}, but there is only {count} class to train "
            "on; expected 2 or more"
        )
    held_out = min(count - 1, max(1, round(fraction * count)))
    order = np.random.default_rng(derive(seed, VALIDATION)).permutation(count)
    return ClassSubset(split, np.sort(order[held_out:])), ClassSubset(
        split, np.sort(order[:held_out])
    )


def hold_out_fold(split: Split, fold: int, folds: int) -> tuple[Split, Split]:
    """Hold out a fold of the classes for cross-validation; return the training and the validation
    split.

    The folds are consecutive. If C isn't a multiple of `folds`, the first folds contain an
    additional class.

    Source: Musgrave, Belongie & Lim 2020, A Metric Learning Reality Check (with four folds).

    Args:
        split: the training split, with C classes; raises a `DmlError` if C is less than `folds`.
        fold: the fold to hold out, from 0.
        folds: number of folds.
    """
    count = len(split.class_names)
    if count < folds:
        raise DmlError(
            f"validation.folds is {folds}, but there are {count} classes to train on; expected at "
            f"most {count} folds"
        )
    parts = np.array_split(np.arange(count), folds)
    held_out = parts.pop(fold)
    return ClassSubset(split, np.concatenate(parts)), ClassSubset(split, held_out)
