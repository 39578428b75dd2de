"""A class loss whose class weights are spread over the ranks.

Shapes: `B` batch, `C` classes, `L` classes of this rank, `D` dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dml_core import Rows, ShardableLoss, is_class_loss, is_shardable
from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.class_shard import RankClasses
from dml_losses.functional.over_ranks import in_common, place, shared_out
from dml_losses.functional.sphere import full_precision


class ShardedClasses(torch.nn.Module):
    """A class loss of which each rank keeps, and updates, the weights of some classes.

    L = the wrapped loss; its softmax runs over the classes of all ranks

    Rank r of W has the classes from ⌊rC/W⌋ up to ⌊(r+1)C/W⌋. It computes their logits alone, so that time and memory
    of the loss, and of its optimizer's state, are 1/W of what they were; no rank ever has all logits. The softmax's
    maximum and sum are reduced over the ranks, and the embeddings' gradient (see `dml_losses.functional.over_ranks`).
    How it is computed from its own classes, the wrapped loss says itself: `dml_core.components.ShardableLoss`.

    As with any loss here, every rank comes with the global batch: in `dml train` that is so, elsewhere
    ``GlobalBatch(ShardedClasses(loss))`` sees to it. Value and gradients are then those of the wrapped loss in one
    process, to rounding, and so is a `class_fraction`: all ranks draw the same classes, and each takes those
    that it has. Nothing of `class_weights` may be exchanged between ranks: keep the loss outside
    DistributedDataParallel, and give each rank's optimizer its own rows.

    Source: An et al. 2021, Partial FC, section 3.1.

    Args:
        loss: a class loss with a method `sharded_forward` and no parameter but its ``class_weights``. It is made whole
            on every rank, so that its weights don't depend on the number of ranks, and changed: it keeps this rank's
            rows. Make the process group first.

    Attributes:
        loss: what was given; its ``class_weights`` are (L, D) now.
        num_classes: C.

    Raises:
        TypeError: for a loss that isn't such, with what it lacks.
        ValueError: if there are fewer classes than ranks.
    """

    loss: ShardableLoss

    def __init__(self, loss: torch.nn.Module) -> None:
        super().__init__()
        if reason := _unfit(loss):
            raise TypeError(f"loss is {type(loss).__name__}, {reason}")
        assert is_shardable(loss)
        weights = loss.class_weights
        self.num_classes = len(weights)
        self._place = place()
        rank, world_size = self._place
        if self.num_classes < world_size:
            raise ValueError(
                f"there are {self.num_classes} classes for {world_size} ranks; expected at least a class for each"
            )
        self._first = rank * self.num_classes // world_size
        own = slice(self._first, (rank + 1) * self.num_classes // world_size)
        loss.class_weights = torch.nn.Parameter(weights.detach()[own].clone())
        self.loss = loss

    def sharded_parameters(self) -> Mapping[str, Rows]:
        """Which rows of which parameter this rank has; see `dml_core.components.ShardedLoss`."""
        return {"loss.class_weights": Rows(self._first, self.num_classes)}

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The scalar loss of the global batch (B, D) with labels (B,) in [0, C), the same on every rank.

        Raises:
            RuntimeError: if ranks have joined or left since the loss was made.
        """
        if (now := place()) != self._place:
            raise RuntimeError(
                f"this is rank {now[0]} of {now[1]}, but was rank {self._place[0]} of {self._place[1]} when the "
                "class weights were shared out; make the process group before the loss"
            )
        weights = self.loss.class_weights
        check_batch(embeddings, labels)
        # As many rows as there are classes, of which one is real: only their number is looked at.
        check_class_weights(embeddings, labels, weights[:1].expand(self.num_classes, -1))
        shard = RankClasses(weights, self._first, self.num_classes)
        return shared_out(self.loss.sharded_forward(in_common(full_precision(embeddings)), labels, shard))

    def extra_repr(self) -> str:
        """Which classes this rank has."""
        last = self._first + len(self.loss.class_weights)
        return f"classes {self._first} to {last} of {self.num_classes}, rank {self._place[0]} of {self._place[1]}"


def _unfit(loss: torch.nn.Module) -> str:
    """What a loss lacks to be computed in parts; empty if nothing."""
    if not is_class_loss(loss):
        return "which has no class_weights; expected a class loss such as ArcFace"
    method = "sharded_forward(embeddings, labels, shard)"
    parameters = [name for name, _ in loss.named_parameters()]
    if not is_shardable(loss):
        return (
            f"whose class weights can't be spread over ranks: it has no method {method}; expected a loss that has it, "
            "such as ArcFace or NormSoftmax (see dml_core.components.ShardableLoss)"
        )
    if parameters != ["class_weights"]:
        return (
            f"whose parameters are {', '.join(parameters) or 'none'}; expected class_weights alone, since the gradient "
            "of any other would be each rank's own"
        )
    order = type(loss).__mro__
    forward, sharded = (
        next((kind for kind in order if name in vars(kind)), order[0])
        for name in ("forward", "sharded_forward")
    )
    if order.index(forward) < order.index(sharded):
        return (
            f"whose forward is {forward.__name__}'s own, and whose sharded_forward is still {sharded.__name__}'s; "
            f"expected {forward.__name__} to define {method}, too, since they must compute the same"
        )
    return ""
