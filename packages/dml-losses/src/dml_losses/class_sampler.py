"""Random choices of classes, so that a class loss compares with some of its classes at each call.

Shapes: `B` batch, `C` classes, `S` classes of the choice, `K` weights (centres) of a class, `D` dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import embedding

from dml_core import ClassShard
from dml_losses.arguments import check_share, check_whole
from dml_losses.functional.class_subset import class_subset
from dml_losses.functional.cosine_softmax import Virtual


class ChosenClasses(NamedTuple):
    """The weights of the classes of a choice, all of them or those of one rank.

    Args:
        weights: (S·K, D).
        labels: (B,), as indices into all ranks' classes of the choice.
        first: the index of the first class of `weights`.
    """

    weights: torch.Tensor
    labels: torch.Tensor
    first: int


class ClassSampler:
    """Choices of classes, each a function of the seed and of the number of earlier choices.

    Every rank draws the same choices. A choice contains the batch's classes. Nothing is drawn for the fraction 1.

    Args:
        class_fraction: the fraction of the classes in (0, 1] that the loss was made with; below 1 the weights'
            gradient is sparse.
        seed: of the choices.
        centers_per_class: K.

    Attributes:
        sparse: whether the weights' gradient is sparse.
        count: the number of earlier choices: save it, so that a resumed run draws the same.

    Raises:
        TypeError: unless the seed is a whole number, and the fraction a number.
        ValueError: for one outside its range.
    """

    def __init__(self, class_fraction: float, seed: int, centers_per_class: int = 1) -> None:
        self.sparse = check_share("class_fraction", class_fraction) < 1
        self.count = 0
        self._seed = check_whole("seed", seed, 0)
        self._centers = centers_per_class

    def choose(self, labels: torch.Tensor, weights: torch.Tensor, class_fraction: float) -> ChosenClasses:
        """Choose among all classes.

        Args:
            labels: (B,), integer in [0, C).
            weights: (C·K, D).
            class_fraction: in (0, 1].
        """
        if not self.sparse and class_fraction == 1:
            return ChosenClasses(weights, labels, 0)
        subset_S, labels = self._draw(labels, len(weights) // self._centers, class_fraction)
        return ChosenClasses(self._select_rows(subset_S, weights), labels, 0)

    def choose_of_shard(
        self, labels: torch.Tensor, shard: ClassShard, class_fraction: float
    ) -> ChosenClasses:
        """Choose among all ranks' classes; the result has the weights of this rank's classes of the choice."""
        weights, first = shard.class_weights, shard.first
        if not self.sparse and class_fraction == 1:
            return ChosenClasses(weights, labels, first)
        subset_S, labels = self._draw(labels, shard.num_classes, class_fraction)
        ends = torch.tensor([first, first + len(weights) // self._centers], device=subset_S.device)
        start, stop = torch.searchsorted(subset_S, ends).tolist()
        return ChosenClasses(self._select_rows(subset_S[start:stop] - first, weights), labels, start)

    def _draw(
        self, labels: torch.Tensor, num_classes: int, class_fraction: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the next choice of classes, (S,) ascending, and express the labels as indices into it, (B,)."""
        generator = torch.Generator().manual_seed(_mix(self._seed, self.count))
        self.count += 1
        return class_subset(labels.long(), num_classes, class_fraction, generator)

    def _select_rows(self, classes_S: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Select the rows of these classes, (S·K, D); a sparse gradient contains no others."""
        center_K = torch.arange(self._centers, device=classes_S.device)
        indices = (classes_S[:, None] * self._centers + center_K).flatten()
        rows: torch.Tensor = embedding(indices, weights, sparse=self.sparse)
        return rows


def check_no_virtual_classes(class_fraction: float, virtual: Virtual | None) -> None:
    """Raise ValueError if there are virtual classes and a fraction of the classes."""
    if virtual is not None and class_fraction < 1:
        raise ValueError(
            f"class_fraction is {class_fraction} and virtual classes were given; expected class_fraction 1 with them, "
            "since virtual classes are past copies of all classes"
        )


def _mix(seed: int, count: int) -> int:
    """Hash seed and count to 32 bits, all that torch's generator uses, so that neighbours differ: splitmix64."""
    z = (seed * 0xD1342543DE82EF95 + (count + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (z ^ (z >> 31)) & 0xFFFFFFFF
