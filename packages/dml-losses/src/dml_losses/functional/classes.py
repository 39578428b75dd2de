"""Inputs of class losses. Classes are weights, the weights that one rank stores, or weights with constants added.

Shapes: `B` batch, `P` constant rows, `C` classes, `K` weights (centres) of a class, `D` dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch

from dml_core import ClassShard
from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.sphere import common_precision, full_precision

_Forward = TypeVar("_Forward", bound=Callable[..., torch.Tensor])


@dataclass(frozen=True, slots=True)
class Virtual:
    """Class weights with further embeddings and classes, which are compared like the batch but get no gradient.

    Args:
        class_weights: (C, D), which get a gradient.
        embeddings: (P, D), any floating dtype.
        labels: (P,), integer in [C, T), where T counts the further classes, too.
        further: the weights of the further classes, each (C', D) of any floating dtype, in the order of their labels.
    """

    class_weights: torch.Tensor
    embeddings: torch.Tensor
    labels: torch.Tensor
    further: tuple[torch.Tensor, ...]

    def join(
        self, embeddings: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Concatenate embeddings, labels and class weights with the constants, for a loss that doesn't know them."""
        # Under autocast, cat takes only autocast's half precision, not the queue's.
        with torch.autocast(embeddings.device.type, enabled=False):
            further = (some.detach().to(self.class_weights.dtype) for some in self.further)
            return (
                torch.cat((embeddings, self.embeddings.detach().to(embeddings.dtype))),
                torch.cat((labels.long(), self.labels)),
                torch.cat((self.class_weights, *further)),
            )

    def constants(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return embeddings, labels and further weights on a tensor's device, in its dtype and without gradient."""
        rows, *further = (
            full_precision(some.detach()).to(like.device, like.dtype)
            for some in (self.embeddings, *self.further)
        )
        return rows, self.labels.to(like.device), further


# (C·K, D), any floating dtype, not normalised; or the classes of one rank; or weights with constants added.
ClassWeights: TypeAlias = torch.Tensor | ClassShard | Virtual


def takes_virtual(forward: _Forward) -> _Forward:
    """Mark the forward of a loss that takes `Virtual` class weights; `MemVir` joins them for any other."""
    forward.takes_virtual = True  # type: ignore[attr-defined]
    return forward


def class_inputs(
    embeddings: torch.Tensor, labels: torch.Tensor, class_weights: ClassWeights, centers_per_class: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Check a class loss's inputs, and return embeddings, labels (int64) and class weights in a common precision.

    Args:
        embeddings: (B, D), any floating dtype.
        labels: (B,), integer in [0, C).
        class_weights: see `ClassWeights`; `Virtual.constants` returns the constants.
        centers_per_class: K.

    Raises:
        TypeError: for embeddings or weights that aren't floating, or labels that aren't integers.
        ValueError: for shapes that don't fit, a number of weights that K doesn't divide, an empty batch, or (on CPU
            tensors) a label outside [0, C). `ShardedClasses` checks a rank's classes itself.
    """
    check_batch(embeddings, labels)
    weights = class_weights if isinstance(class_weights, torch.Tensor) else class_weights.class_weights
    if isinstance(class_weights, (torch.Tensor, Virtual)):
        check_class_weights(embeddings, labels, weights, rows_per_class=centers_per_class)
    features, weights = common_precision(embeddings, weights)
    return features, labels.long(), weights
