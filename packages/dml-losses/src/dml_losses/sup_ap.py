"""SupAP as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_non_negative, check_positive, show
from dml_losses.functional.sup_ap import sup_ap


class SupAP(torch.nn.Module):
    """One minus a lower bound of the mean average precision: `dml_losses.functional.sup_ap`.

    Use it instead of `SmoothAP`, whose gradient vanishes if ranks are very wrong.

    Args:
        temperature, slope, saturation: see `sup_ap`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
    """

    def __init__(
        self, temperature: float = 0.01, slope: float = 100.0, saturation: float = 0.05
    ) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)
        self.slope = check_positive("slope", slope)
        self.saturation = check_non_negative("saturation", saturation)

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
        return sup_ap(
            embeddings,
            labels,
            gallery,
            gallery_labels,
            temperature=self.temperature,
            slope=self.slope,
            saturation=self.saturation,
        )

    extra_repr = show("temperature", "slope", "saturation")
