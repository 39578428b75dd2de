"""One loss over all ranks' rows."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import distributed

from dml_core import is_class_loss
from dml_losses.functional.over_ranks import place


class GlobalBatch(torch.nn.Module):
    """A loss of the global batch, on every rank: W ranks compute what one process would.

    L_r = l(x_1 ∪ … ∪ x_W) on every rank r; ∂L_r/∂x_r = W · ∂l/∂x_r where gradients are averaged, ∂l/∂x_r where summed

    Every rank gathers all ranks' embeddings and labels, in the order of the ranks, and computes the whole loss, so
    its value is the same on all and is that of one process with the joined batch; memories inside the loss hold the
    same rows in the same order everywhere. DistributedDataParallel averages the ranks' gradients, each of which
    covers only the rank's own rows; the factor W makes their average the whole gradient. The loss's own parameters
    have their whole gradient on every rank: wrap the network alone in DistributedDataParallel, and nothing of the
    loss need be exchanged. (Inside it they are averaged, which leaves them as they are; but its buffers would be
    sent around at every step, and it takes no sparse gradients.)

    Without an initialised process group, or with one rank, it is the loss itself.

    Args:
        loss: any loss. Wrappers that hold a memory go inside: ``GlobalBatch(MemVir(NormSoftmax(…), …))``.
        gradients: how the network's gradients are combined over the ranks afterwards: ``"mean"``, as
            DistributedDataParallel does, or ``"sum"``.

    Raises:
        ValueError: for another `gradients`.
    """

    def __init__(self, loss: torch.nn.Module, gradients: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        if gradients not in ("mean", "sum"):
            raise ValueError(f"gradients is {gradients!r}; expected 'mean' or 'sum'")
        self.loss = loss
        self.gradients = gradients

    def __getattr__(self, name: str) -> Any:
        if name == "class_weights" and is_class_loss(self.loss):
            return self.loss.class_weights
        return super().__getattr__(name)

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, *others: torch.Tensor | None
    ) -> torch.Tensor:
        """The scalar loss of all ranks' embeddings (B_r, D) and labels (B_r,); B_r may differ between ranks.

        What follows (a gallery and its labels, or class weights) goes to the loss as it is: the same on every rank.
        """
        _, world_size = place()
        if world_size > 1:
            counts = _counts(len(labels), world_size, labels.device)
            factor = world_size if self.gradients == "mean" else 1
            embeddings = _GatherRows.apply(embeddings, counts, factor)
            labels = _gather(labels.long(), counts)
        value: torch.Tensor = self.loss(embeddings, labels, *others)
        return value

    def extra_repr(self) -> str:
        """The parameters, for `repr`."""
        return f"gradients={self.gradients!r}"


def _counts(count: int, world_size: int, device: torch.device) -> list[int]:
    """How many rows each rank brings."""
    counts = torch.empty(world_size, dtype=torch.int64, device=device)
    distributed.all_gather_into_tensor(counts, torch.tensor([count], device=device))
    every: list[int] = counts.tolist()
    return every


def _gather(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """All ranks' rows, one rank's after another's."""
    widest = max(counts)
    padded = rows.new_zeros(widest, *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = rows.new_empty(len(counts) * widest, *rows.shape[1:])
    distributed.all_gather_into_tensor(gathered, padded)
    return torch.cat([part[:count] for part, count in zip(torch.split(gathered, widest), counts)])


class _GatherRows(torch.autograd.Function):
    """`_gather`, with the gradient of the rank's own rows: every rank computes the same loss, so it is all there is."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: list[int], factor: int) -> torch.Tensor:
        rank = distributed.get_rank()
        ctx.own, ctx.factor = slice(sum(counts[:rank]), sum(counts[: rank + 1])), factor
        return _gather(rows.detach(), counts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient[ctx.own] * ctx.factor, None, None
