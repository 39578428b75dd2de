"""SupCon as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive
from dml_losses.functional.sup_con import sup_con


class SupCon(torch.nn.Module):
    """Mean over an anchor's positives of the cross entropy of each among all rows.

    L = mean_a −1/|P_a| · Σ_{i ∈ P_a} log( exp(s_ai/τ) / Σ_{j≠a} exp(s_aj/τ) )

    Source: Khosla et al. 2020, Supervised Contrastive Learning, its L_out.

    Args:
        temperature: τ > 0; 0.1 in the paper.

    Raises:
        TypeError: for a temperature that is no number.
        ValueError: for one that isn't finite and positive.
    """

    def __init__(self, temperature: float = 0.1) -> None:
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
        return sup_con(embeddings, labels, gallery, gallery_labels, temperature=self.temperature)

    def extra_repr(self) -> str:
        """Return the parameters, for `repr`."""
        return f"temperature={self.temperature}"
