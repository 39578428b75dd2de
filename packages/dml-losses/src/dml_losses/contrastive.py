"""Contrastive loss as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.functional.contrastive import contrastive


class Contrastive(torch.nn.Module):
    """Half the squared distance of positives, plus half the squared shortfall of negatives within a
    margin.

    Use it as a baseline, or if a distance must have a meaning: a threshold below the margin
    separates classes. For the equation, see `dml_losses.functional.contrastive`.

    Args:
        margin: see `contrastive`.

    Raises:
        TypeError, ValueError: if the margin isn't a number, or isn't finite and above 0.
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = check_positive("margin", margin)

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scalar loss of embeddings (B, D) with labels (B,); the default gallery is the
        batch itself.
        """
        return contrastive(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            margin=self.margin,
        )

    extra_repr = show("margin")
