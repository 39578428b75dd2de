"""Smooth-AP as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive
from dml_losses.functional.smooth_ap import smooth_ap


class SmoothAP(torch.nn.Module):
    """One minus the mean average precision, with sigmoids for steps.

    L = mean_q (1 − AP_q); see `dml_losses.functional.smooth_ap`.

    Source: Brown et al. 2020, Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval.

    Args:
        temperature: τ > 0; 0.01 in the paper.

    Raises:
        TypeError: for a temperature that is no number.
        ValueError: for one that isn't finite and positive.
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
        """Compute the scalar loss of embeddings (B, D) with labels (B,), against the gallery or the batch itself."""
        return smooth_ap(embeddings, labels, gallery, gallery_labels, temperature=self.temperature)

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        return f"temperature={self.temperature}"
