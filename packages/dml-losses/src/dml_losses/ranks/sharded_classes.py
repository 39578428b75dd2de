"""A class loss whose class weights are sharded over the ranks.

Shapes: `B` batch, `C` classes, `L` classes of this rank, `D` dim, `K` weights (centres) per class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from dml_core import (
    Rows,
    ShardableLoss,
    centers_per_class_of,
    is_class_loss,
    is_shardable,
    rank_and_world_size,
)
from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.class_weights import keep_rank_rows, rows_of_rank
from dml_losses.exchange import divide_gradient_by_ranks, sum_gradient_over_ranks
from dml_losses.functional.sphere import full_precision
from dml_losses.ranks.class_shard import RankClasses
from dml_losses.update_check import expect_updates


class ShardedClasses(torch.nn.Module):
    """A class loss whose class weights are divided over the ranks: each rank stores and updates
    some classes.

    Rank r of W has the classes in [⌊rC/W⌋, ⌊(r+1)C/W⌋) and only computes their logits, so the loss
    and its optimizer's state need 1/W of the time and memory of a single process. The loss must be
    a `dml_core.ShardableLoss`.

    All ranks need the global batch: `dml train` gathers it; elsewhere, use
    ``GlobalBatch(ShardedClasses(loss))``. Value and gradients are then the same as in a single
    process, up to rounding. Ranks must not exchange `class_weights` or its gradient: don't put the
    loss into DistributedDataParallel, and pass only this rank's rows to its optimizer.

    Source: An et al. 2021, Partial FC, section 3.1.

    The number of ranks doesn't change the initial weights. If you pass a function that makes the
    loss, as `dml train` does, a rank draws all weights in blocks and only keeps its rows. If a loss
    doesn't draw its weights by `dml_losses.class_weights.initial_class_weights`, it is made with
    all rows, and then cut.

        >>> from dml_losses import ArcFace, ShardedClasses
        >>> sharded = ShardedClasses(lambda: ArcFace(num_classes=10, embedding_dim=4))
        >>> sharded.loss.class_weights.shape
        torch.Size([10, 4])

    Args:
        loss: a class loss with a method `sharded_forward` and no parameter except
            ``class_weights``, or a function without arguments that makes such a loss. Each rank
            makes it for all classes, after the process group. The loss is changed: it only keeps
            this rank's rows of ``class_weights``.

    Attributes:
        loss: the loss, whose ``class_weights`` are now (L, D), or (L·K, D) with K centres per
            class.
        num_classes: C.

    Raises:
        TypeError: if the loss can't be sharded, with the reason.
        ValueError: if there are fewer classes than ranks.
    """

    loss: ShardableLoss

    def __init__(self, loss: torch.nn.Module | Callable[[], torch.nn.Module]) -> None:
        super().__init__()
        drawn: list[int] = []
        if not isinstance(loss, torch.nn.Module) and callable(loss):
            with keep_rank_rows() as drawn:
                loss = loss()
        if reason := _why_not_shardable(loss):
            raise TypeError(f"loss is {type(loss).__name__}, {reason}")
        assert is_shardable(loss)
        weights = loss.class_weights
        self._centers = centers_per_class_of(loss)
        self._rank_and_world_size = _, world_size = rank_and_world_size()
        # If the loss only drew this rank's rows, find C from their number; else it has the rows of
        # all classes.
        whole_of = {_count(rows_of_rank(classes, self._centers)): classes for classes in drawn}
        self.num_classes = whole_of.get(len(weights), len(weights) // self._centers)
        if self.num_classes < world_size:
            raise ValueError(
                f"there are {self.num_classes} classes for {world_size} ranks; expected at least "
                "one for each"
            )
        own = rows_of_rank(self.num_classes, self._centers)
        self._first = own.start // self._centers
        if len(weights) > _count(own):
            loss.class_weights = expect_updates(
                "class_weights", torch.nn.Parameter(weights.detach()[own].clone())
            )
        self.loss = loss

    def sharded_parameters(self) -> Mapping[str, Rows]:
        """Return this rank's rows of the class weights; see `dml_core.ShardedLoss`."""
        return {
            "loss.class_weights": Rows(
                self._first * self._centers, self.num_classes * self._centers
            )
        }

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Compute the scalar loss of the global batch (B, D) with labels (B,) in [0, C), the same
        on all ranks.

        Raises:
            RuntimeError: if this process's rank, or the number of ranks, has changed since the loss
                was made.
        """
        rank, world_size = self._rank_and_world_size
        if (now := rank_and_world_size()) != (rank, world_size):
            raise RuntimeError(
                f"this is rank {now[0]} of {now[1]}, but was rank {rank} of {world_size} when the "
                "class weights were sharded; make the process group before the loss"
            )
        weights = self.loss.class_weights
        check_batch(embeddings, labels)
        # The check only reads the shape, so expand one row to all classes.
        all_weights = weights[:1].expand(self.num_classes * self._centers, -1)
        check_class_weights(embeddings, labels, all_weights, rows_per_class=self._centers)
        shard = RankClasses(weights, self._first, self.num_classes)
        features_BD = sum_gradient_over_ranks(full_precision(embeddings))
        return divide_gradient_by_ranks(self.loss.sharded_forward(features_BD, labels, shard))

    def extra_repr(self) -> str:
        """Return which classes this rank has, for `repr`."""
        last = self._first + len(self.loss.class_weights) // self._centers
        rank, world_size = self._rank_and_world_size
        return f"classes {self._first} to {last} of {self.num_classes}, rank {rank} of {world_size}"


def _count(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _why_not_shardable(loss: torch.nn.Module) -> str:
    """Explain why a loss can't be sharded; empty if it can."""
    if not is_class_loss(loss):
        return "which has no class_weights; expected a class loss such as ArcFace"
    method = "sharded_forward(embeddings, labels, shard)"
    parameters = [name for name, _ in loss.named_parameters()]
    if not is_shardable(loss):
        return (
            f"whose class weights can't be sharded: it has no method {method}; expected a loss "
            "that has it, such as ArcFace or NormSoftmax (see dml_core.ShardableLoss)"
        )
    if parameters != ["class_weights"]:
        return (
            f"whose parameters are {', '.join(parameters) or 'none'}; expected only class_weights, "
            "since the gradient of any other would differ between ranks"
        )
    order = type(loss).__mro__
    forward, sharded = (
        next((kind for kind in order if name in vars(kind)), order[0])
        for name in ("forward", "sharded_forward")
    )
    if order.index(forward) < order.index(sharded):
        return (
            f"whose forward is defined by {forward.__name__}, but whose sharded_forward is "
            f"inherited from {sharded.__name__}; expected {forward.__name__} to define {method}, "
            "too, since both must compute the same"
        )
    return ""
