"""A loss of all ranks' rows."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import distributed

from dml_core import all_gather_rows, is_class_loss, rank_and_world_size
from dml_losses.arguments import show


class GlobalBatch(torch.nn.Module):
    """A loss of the global batch, on all ranks: W ranks compute the same loss as a single process
    would.

    L_r = l(x_1 ∪ … ∪ x_W) on every rank r;
    ∂L_r/∂x_r = W · ∂l/∂x_r where gradients are averaged, ∂l/∂x_r where summed

    Each rank gathers the rows of all ranks, in the order of the ranks, and computes the full loss:
    the value is the same as in a single process with the joined batch, and memories in the loss
    contain the same rows on all ranks. A rank's gradient only covers its rows; with the factor W,
    the average over ranks, which DistributedDataParallel computes, is the full gradient. Parameters
    of the loss get the full gradient on each rank, so don't put the loss into
    DistributedDataParallel, which would broadcast its buffers at each step and doesn't support
    sparse gradients.

    If there is no process group, or only one rank, this module is the same as the loss.

    Args:
        loss: any loss. Put wrappers with a memory inside:
            ``GlobalBatch(MemVir(NormSoftmax(…), …))``.
        gradients: how the ranks will combine the network's gradients: ``"mean"``, like
            DistributedDataParallel, or ``"sum"``.
        gather_gallery: whether each rank passes only its rows of the gallery, for example the texts
            of its images, and the gallery of all ranks is gathered. By default, all ranks must pass
            the same gallery.

    Raises:
        ValueError: if `gradients` is unknown.
    """

    def __init__(
        self,
        loss: torch.nn.Module,
        gradients: Literal["mean", "sum"] = "mean",
        gather_gallery: bool = False,
    ) -> None:
        super().__init__()
        if gradients not in ("mean", "sum"):
            raise ValueError(f"gradients is {gradients!r}; expected 'mean' or 'sum'")
        self.loss = loss
        self.gradients: Literal["mean", "sum"] = gradients
        self.gather_gallery = gather_gallery

    def __getattr__(self, name: str) -> Any:
        if name == "class_weights" and is_class_loss(self.loss):
            return self.loss.class_weights
        return super().__getattr__(name)

    def forward(
        self, embeddings: torch.Tensor, labels: torch.Tensor, *others: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the scalar loss of all ranks' embeddings (B_r, D) and labels (B_r,); B_r can
        differ between ranks.

        Further arguments (a gallery and its labels, or class weights) must be the same on all
        ranks, except the rows of a gallery that `gather_gallery` gathers.
        """
        embeddings, labels = self._gather(embeddings, labels)
        if (
            self.gather_gallery
            and len(others) == 2
            and others[0] is not None
            and others[1] is not None
        ):
            others = self._gather(others[0], others[1])
        value: torch.Tensor = self.loss(embeddings, labels, *others)
        return value

    def _gather(
        self, rows: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _, world_size = rank_and_world_size()
        if world_size == 1:
            return rows, labels
        counts = _all_gather_count(len(labels), world_size, labels.device)
        return all_gather_rows(rows, counts, gradients=self.gradients), all_gather_rows(
            labels.long(), counts
        )

    extra_repr = show("gradients", "gather_gallery")


def _all_gather_count(count: int, world_size: int, device: torch.device) -> list[int]:
    """Gather how many rows each rank has."""
    counts = torch.empty(world_size, dtype=torch.int64, device=device)
    distributed.all_gather_into_tensor(counts, torch.tensor([count], device=device))
    every: list[int] = counts.tolist()
    return every
