"""SupCon as a module."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_positive, show
from dml_losses.functional.sup_con import sup_con


class SupCon(torch.nn.Module):
    """Cross entropy of a softmax over all rows, at an anchor's positives:
    `dml_losses.functional.sup_con`.

    Use it with large batches, since each anchor is compared with all rows.

    Args:
        temperature: see `sup_con`.

    Raises:
        TypeError, ValueError: if a parameter has the wrong type or is out of range.
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
        """Compute the scalar loss of embeddings (B, D) with labels (B,); the default gallery is the
        batch itself.
        """
        return sup_con(embeddings, labels, gallery, gallery_labels, temperature=self.temperature)

    extra_repr = show("temperature")
