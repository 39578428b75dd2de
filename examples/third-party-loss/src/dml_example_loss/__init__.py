"""A third-party loss: an `nn.Module` and a `hookimpl`. The entry point in pyproject.toml names this
module.

Shapes: `B` batch, `G` gallery, `D` dim.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.functional import normalize

from dml_core import Component, hookimpl


class SupervisedContrastive(torch.nn.Module):
    """Softmax of the positives per anchor, compared with all other items in the batch.

    L = −mean_a 1/|P(a)| · Σ_{p ∈ P(a)} log( exp(z_aᵀz_p/τ) / Σ_{k ≠ a} exp(z_aᵀz_k/τ) )

    Source: Khosla et al. 2020, Supervised Contrastive Learning, Eq. 2; the mean is over the anchors
    that have positives.

    Args:
        temperature: τ > 0.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}; expected a number above 0")
        self.temperature = temperature

    def forward(
        self,
        embeddings: torch.Tensor,
        labels: torch.Tensor,
        gallery: torch.Tensor | None = None,
        gallery_labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the scalar loss of embeddings (B, D) with integer labels (B,), against a gallery
        (G, D) if given.
        """
        z_BD = normalize(embeddings.float())
        z_GD = z_BD if gallery is None else normalize(gallery.float())
        labels_G = labels if gallery_labels is None else gallery_labels
        with torch.autocast(embeddings.device.type, enabled=False):
            logits_BG = z_BD @ z_GD.T / self.temperature
        positive_BG = labels[:, None] == labels_G
        if gallery is None:  # exclude the item itself from the positives and the denominator
            itself_BG = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
            positive_BG = positive_BG & ~itself_BG
            logits_BG = logits_BG.masked_fill(itself_BG, torch.finfo(logits_BG.dtype).min)
        log_probability_BG = logits_BG - logits_BG.logsumexp(dim=1, keepdim=True)
        num_positives_B = positive_BG.sum(dim=1)
        per_anchor_B = -(log_probability_BG * positive_BG).sum(dim=1) / num_positives_B.clamp_min(1)
        return per_anchor_B.sum() / (num_positives_B > 0).sum().clamp_min(1)


@hookimpl
def dml_losses() -> Iterable[Component]:
    """Register the loss of this package."""
    yield Component(
        "supervised-contrastive",
        SupervisedContrastive,
        "softmax of the positives per anchor against all other items",
        source="Khosla et al. 2020, Eq. 2",
    )
