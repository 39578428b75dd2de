"""Protocols of losses, required and optional.

Shapes: `B` batch, `D` embedding dimension, `C` classes, `G` gallery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class PairLoss(Protocol):
    """A loss that compares instances with instances.

    By default, the batch is compared with itself, and rows exclude themselves by index. Use the
    gallery to pass rows from a memory or from other ranks; rows of the gallery are not excluded.
    """

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D), any floating dtype, not necessarily normalised
        labels: torch.Tensor,  # (B,), integer
        gallery: torch.Tensor | None = None,  # (G, D)
        gallery_labels: torch.Tensor | None = None,  # (G,), integer
    ) -> torch.Tensor:  # ()
        """Return the loss, a scalar that back-propagates even if it is zero."""


class ClassLoss(Protocol):
    """A loss that compares instances with class weights; `is_class_loss` recognises it by
    `class_weights`.
    """

    class_weights: torch.Tensor  # (C, D)

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D)
        labels: torch.Tensor,  # (B,), integer in [0, C)
        class_weights: torch.Tensor
        | None = None,  # (C', D), to use instead of the module's weights
    ) -> torch.Tensor:  # ()
        """Return the loss, a scalar that back-propagates even if it is zero."""


def is_class_loss(loss: object) -> bool:
    """Tell whether a loss is a `ClassLoss`, which compares with class weights, and not a
    `PairLoss`.
    """
    return hasattr(loss, "class_weights")


class SubsampledClasses(Protocol):
    """A class loss that compares with a fraction of the classes per call; optional, read by
    `class_fraction_of`.
    """

    class_fraction: float  # in (0, 1]; 1: all classes


def class_fraction_of(loss: object) -> float:
    """Return the fraction of classes that a loss compares with: 1 (all) unless it is a
    `SubsampledClasses`.
    """
    fraction: float = getattr(loss, "class_fraction", 1.0)
    return fraction


class MultiCenter(Protocol):
    """A class loss with multiple rows of `class_weights` per class; optional, read by
    `centers_per_class_of`.

    The rows of a class must be consecutive. Labels are indices of classes, not of rows.
    """

    centers_per_class: int  # at least 1


def centers_per_class_of(loss: object) -> int:
    """Return the number of class weights per class: 1 unless the loss is a `MultiCenter`."""
    centers: int = getattr(loss, "centers_per_class", 1)
    return centers


class Rows(NamedTuple):
    """The rows of a parameter that a rank stores: the tensor begins with row `first` of `total`."""

    first: int
    total: int


@runtime_checkable
class ShardedLoss(Protocol):
    """A loss, or a module inside a loss, that stores only some rows of a parameter per rank.

    The rows must follow the order of the ranks, and must not have gaps. The trainer will not reduce
    the gradient of such a parameter over the ranks, and saves the parameter and the optimizer's
    state with all rows.
    """

    def sharded_parameters(self) -> Mapping[str, Rows]:
        """Return which rows this rank stores, by the parameter's name in the module."""


class ClassShard(Protocol):
    """The classes whose weights this rank stores, with reductions over the classes of all ranks.

    Both methods take logits z for this rank's classes, (B, L) in any float dtype, and labels (B,)
    that count the classes of all ranks. All ranks must use the same order of calls. The result (B,)
    will be equal on all ranks.
    """

    # (L, D), for the classes `first` to `first` + L; L can be 0. `MultiCenter`: (L·K, D)
    class_weights: torch.Tensor
    first: int
    num_classes: int  # C, over all ranks

    def true_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return z_y, the logits of the rows' true classes, from the ranks that store the
        classes.
        """

    def other_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return log Σ_{c≠y} exp(z_c) over the classes of all ranks; −∞ if there is only a single
        class.
        """


class ShardableLoss(ClassLoss, Protocol):
    """A class loss that can be computed when a rank only stores the weights of some classes.

    `class_weights` must be the only parameter: a row per class, or K for a `MultiCenter`. See
    `is_shardable`.
    """

    def sharded_forward(
        self,
        embeddings: torch.Tensor,  # (B, D), float32 or float64, equal on all ranks
        labels: torch.Tensor,  # (B,), integer in [0, C), equal on all ranks
        shard: ClassShard,
    ) -> torch.Tensor:  # ()
        """Return the loss over the classes of all ranks, the same on all ranks.

        Use `shard` to compute the terms that depend on other ranks' classes. The gradients are then
        correct for any formula: ranks back-propagate a share of the value, and the embeddings'
        gradients are summed.
        """


def is_shardable(loss: object) -> TypeGuard[ShardableLoss]:
    """Tell whether a loss is a `ShardableLoss`; from Python 3.12 on, `isinstance` misses a module's
    parameters.
    """
    return is_class_loss(loss) and callable(getattr(loss, "sharded_forward", None))


@runtime_checkable
class LoggedLoss(Protocol):
    """A loss, or a module inside a loss, with further values to log; the trainer reads them after
    each step.
    """

    def logged_values(self) -> Mapping[str, torch.Tensor]:
        """Return the scalars of the last call, without gradient, by their path in the module
        (``"terms.triplet"``).

        The names, and the device, must be the same after each call.
        """


@runtime_checkable
class SparseLoss(Protocol):
    """A loss, or a module inside a loss, with parameters that get a sparse gradient; few optimizers
    support this.

    The trainer reads the names once, right after construction, to choose the optimizer of these
    parameters.
    """

    def sparse_parameters(self) -> Sequence[str]:
        """Return the names of these parameters in the module."""
