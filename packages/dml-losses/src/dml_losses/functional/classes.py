"""Inputs of class losses: class weights, a rank's class weights, or class weights with constants
added.

Shapes: `B` batch, `P` constant rows, `C` classes, `K` weights (centres) per class, `D` dim.
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
    """Class weights with extra embeddings and classes, which are compared like the batch but don't
    get a gradient.

    Args:
        class_weights: (C, D); they get a gradient.
        embeddings: (P, D), any floating dtype.
        labels: integers of shape (P,) in [C, T), where T also counts the extra classes.
        further: the weights of the extra classes, (C', D) each, in any floating dtype and in the
            order of their labels.
    """

    class_weights: torch.Tensor
    embeddings: torch.Tensor
    labels: torch.Tensor
    further: tuple[torch.Tensor, ...]

    def join(
        self, embeddings: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Concatenate embeddings, labels and class weights with the constants, for losses that
        don't take `Virtual`.
        """
        # Turn autocast off: its cat rejects half precision in a different dtype, such as the
        # queue's.
        with torch.autocast(embeddings.device.type, enabled=False):
            further = (some.detach().to(self.class_weights.dtype) for some in self.further)
            return (
                torch.cat((embeddings, self.embeddings.detach().to(embeddings.dtype))),
                torch.cat((labels.long(), self.labels)),
                torch.cat((self.class_weights, *further)),
            )

    def constants(
        self, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return the constants: embeddings, labels and extra classes' weights, in the device and
        dtype of `like`.
        """
        rows, *further = (
            full_precision(some.detach()).to(like.device, like.dtype)
            for some in (self.embeddings, *self.further)
        )
        return rows, self.labels.to(like.device), further


# (C·K, D), any floating dtype, not normalised; or this rank's classes; or weights with constants
# added.
ClassWeights: TypeAlias = torch.Tensor | ClassShard | Virtual


def takes_virtual(forward: _Forward) -> _Forward:
    """Mark a `forward` that takes `Virtual` class weights; for other losses, `MemVir` calls
    `Virtual.join`.
    """
    forward.takes_virtual = True  # type: ignore[attr-defined]
    return forward


def class_inputs(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    centers_per_class: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Check the inputs of a class loss, and return embeddings, labels (int64) and class weights in
    a common precision.

    Args:
        embeddings: (B, D), any floating dtype.
        labels: integers of shape (B,) in [0, C).
        class_weights: see `ClassWeights`; `Virtual.constants` returns the constants.
        centers_per_class: K.

    Raises:
        TypeError: if embeddings or weights aren't floating, or labels aren't integers.
        ValueError: if shapes don't match, K doesn't divide the number of weights, the batch is
            empty, or (on CPU tensors) a label is outside [0, C). The classes of a rank are checked
            by `ShardedClasses`.
    """
    check_batch(embeddings, labels)
    weights = (
        class_weights if isinstance(class_weights, torch.Tensor) else class_weights.class_weights
    )
    if isinstance(class_weights, (torch.Tensor, Virtual)):
        check_class_weights(embeddings, labels, weights, rows_per_class=centers_per_class)
    features, weights = common_precision(embeddings, weights)
    return features, labels.long(), weights
