"""KoLeo as a module."""

from __future__ import annotations

import torch

from dml_losses.functional.koleo import koleo


class KoLeo(torch.nn.Module):
    """Regulariser that spreads embeddings over the sphere, without regard to labels:
    `dml_losses.functional.koleo`.

    Use it as a term of `SumOfLosses` if embeddings collapse, or if they will be compressed to
    codes. DINOv2 weights it by 0.1.
    """

    def __init__(self) -> None:  # declares no options: the inherited constructor would accept any
        super().__init__()

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
        return koleo(embeddings, labels, gallery, gallery_labels)
