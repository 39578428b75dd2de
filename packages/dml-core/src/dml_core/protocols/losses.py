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

    Without a gallery, the batch is its own gallery, and each row excludes itself by index. The rows of a memory or
    of another rank are passed as a gallery; no row of it is excluded.
    """

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D), any floating dtype, not necessarily normalised
        labels: torch.Tensor,  # (B,), integer
        gallery: torch.Tensor | None = None,  # (G, D)
        gallery_labels: torch.Tensor | None = None,  # (G,), integer
    ) -> torch.Tensor:  # ()
        """Return the loss, a scalar that back-propagates even where it is zero."""


class ClassLoss(Protocol):
    """A loss that compares instances with class weights; `is_class_loss` recognises it by `class_weights`."""

    class_weights: torch.Tensor  # (C, D)

    def __call__(
        self,
        embeddings: torch.Tensor,  # (B, D)
        labels: torch.Tensor,  # (B,), integer in [0, C)
        class_weights: torch.Tensor | None = None,  # (C', D) instead of the module's own
    ) -> torch.Tensor:  # ()
        """Return the loss, a scalar that back-propagates even where it is zero."""


def is_class_loss(loss: object) -> bool:
    """Whether a loss is a `ClassLoss`, which compares with class weights, and not a `PairLoss`."""
    return hasattr(loss, "class_weights")


class SubsampledClasses(Protocol):
    """A class loss that compares with some of its classes at each call; optional, asked by `class_fraction_of`."""

    class_fraction: float  # in (0, 1]; 1: all classes


def class_fraction_of(loss: object) -> float:
    """Return the fraction of its classes that a loss compares with: all, 1, unless it is a `SubsampledClasses`."""
    fraction: float = getattr(loss, "class_fraction", 1.0)
    return fraction


class MultiCenter(Protocol):
    """A class loss with several rows of `class_weights` for each class; optional, asked by `centers_per_class_of`.

    The rows of a class are consecutive, and labels count classes.
    """

    centers_per_class: int  # at least 1


def centers_per_class_of(loss: object) -> int:
    """Return how many rows of class weights a loss has for each class: 1, unless it is a `MultiCenter`."""
    centers: int = getattr(loss, "centers_per_class", 1)
    return centers


class Rows(NamedTuple):
    """The rows of a parameter that a rank stores: as many as its tensor has, from `first` on, out of `total`."""

    first: int
    total: int


@runtime_checkable
class ShardedLoss(Protocol):
    """A loss, or a module in one, that stores on each rank only some rows of a parameter.

    The ranks' rows follow one another in the order of the ranks, without gap. The trainer doesn't reduce such a
    parameter's gradient over the ranks, and saves parameter and optimizer state with all rows.
    """

    def sharded_parameters(self) -> Mapping[str, Rows]:
        """Return this rank's rows of each such parameter, by its name in the module."""


class ClassShard(Protocol):
    """The classes whose weights this rank stores, with reductions over all ranks' classes.

    Both methods take logits z of this rank's classes, (B, L) and any float dtype, and labels among all ranks'
    classes, (B,); every rank must call them, in the same order. They return (B,), the same on every rank.
    """

    # (L, D), of the classes `first` to `first` + L; L may be 0. `MultiCenter`: (L·K, D)
    class_weights: torch.Tensor
    first: int
    num_classes: int  # C, of all ranks

    def true_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return z_y, the logit of each row's true class, from the rank that stores the class."""

    def other_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return log Σ_{c≠y} exp(z_c) over the classes of all ranks; −∞ if there is one class."""


class ShardableLoss(ClassLoss, Protocol):
    """A class loss that ranks can compute when each stores the weights of some classes.

    Its one parameter is `class_weights`, with a row for each class, or K rows for a `MultiCenter`. `is_shardable`
    recognises it.
    """

    def sharded_forward(
        self,
        embeddings: torch.Tensor,  # (B, D), float32 or float64, the same on every rank
        labels: torch.Tensor,  # (B,), integer in [0, C), the same on every rank
        shard: ClassShard,
    ) -> torch.Tensor:  # ()
        """Return the loss over the classes of all ranks, the same on every rank.

        `shard` supplies what depends on the other ranks' classes. The gradients are those of the whole loss, however
        it is composed: each rank back-propagates its share of the value, and the embeddings' gradients are summed.
        """


def is_shardable(loss: object) -> TypeGuard[ShardableLoss]:
    """Whether a loss is a `ShardableLoss`; `isinstance` misses a module's parameters from Python 3.12 on."""
    return is_class_loss(loss) and callable(getattr(loss, "sharded_forward", None))


@runtime_checkable
class SparseLoss(Protocol):
    """A loss, or a module in one, some of whose parameters get a sparse gradient; few optimizers support one.

    The trainer asks once, right after construction, and chooses the parameters' optimizer accordingly.
    """

    def sparse_parameters(self) -> Sequence[str]:
        """Return the names of these parameters in the module."""
