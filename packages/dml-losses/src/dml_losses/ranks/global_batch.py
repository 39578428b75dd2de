"""One loss over all ranks' rows."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import distributed

from dml_core import all_gather_rows, is_class_loss, rank_and_world_size


class GlobalBatch(torch.nn.Module):
    """A loss of the global batch, on every rank: W ranks compute what one process would.

    L_r = l(x_1 ∪ … ∪ x_W) on every rank r; ∂L_r/∂x_r = W · ∂l/∂x_r where gradients are averaged, ∂l/∂x_r where summed

    Every rank gathers all ranks' rows, in the order of the ranks, and computes the whole loss: the value is that of
    one process with the joined batch, and memories inside hold the same rows everywhere. DistributedDataParallel
    averages the ranks' gradients, each of which covers only the rank's own rows; the factor W makes their average the
    whole. The loss's own parameters have their whole gradient on every rank, so keep the loss outside
    DistributedDataParallel, which would broadcast its buffers at every step and refuses sparse gradients.

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
        self.gradients: Literal["mean", "sum"] = gradients

    def __getattr__(self, name: str) -> Any:
        if name == "class_weights" and is_class_loss(self.loss):
            return self.loss.class_weights
        return super().__getattr__(name)

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, *others: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the scalar loss of all ranks' embeddings (B_r, D) and labels (B_r,); B_r may differ between ranks.

        Further arguments (a gallery and its labels, or class weights) are passed on unchanged: they are the same on
        every rank.
        """
        _, world_size = rank_and_world_size()
        if world_size > 1:
            counts = _all_gather_count(len(labels), world_size, labels.device)
            embeddings = all_gather_rows(embeddings, counts, gradients=self.gradients)
            labels = all_gather_rows(labels.long(), counts)
        value: torch.Tensor = self.loss(embeddings, labels, *others)
        return value

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        return f"gradients={self.gradients!r}"


def _all_gather_count(count: int, world_size: int, device: torch.device) -> list[int]:
    """Gather how many rows each rank has."""
    counts = torch.empty(world_size, dtype=torch.int64, device=device)
    distributed.all_gather_into_tensor(counts, torch.tensor([count], device=device))
    every: list[int] = counts.tolist()
    return every
