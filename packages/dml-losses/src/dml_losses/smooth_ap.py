"""Smooth-AP as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.functional.smooth_ap import smooth_ap


class SmoothAP(torch.nn.Module):
    """One minus the mean average precision, with sigmoids instead of steps:
    `dml_losses.functional.smooth_ap`.

    Use it to train the metric that you report, with large batches (see `training.micro_batch`).

    Args:
        temperature: see `smooth_ap`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(self, temperature: float = 0.01) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

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
        return smooth_ap(embeddings, labels, gallery, gallery_labels, temperature=self.temperature)

    extra_repr = show("temperature")
