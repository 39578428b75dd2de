"""CosFace: a margin subtracted from the true class's cosine."""

from __future__ import annotations

import torch

from dml_losses.functional.classes import ClassWeights
from dml_losses.functional.cosine_softmax import cosine_softmax


def cos_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    *,
    scale: float = 64.0,
    margin: float = 0.35,
) -> torch.Tensor:
    """Compute the softmax cross entropy of scaled cosines, with a margin subtracted from the true
    class's cosine.

    L = −mean_b log( e^{s(cos θ_y − m)} / (e^{s(cos θ_y − m)} + Σ_{c≠y} e^{s·cos θ_c}) )

    Source: Wang et al. 2018, CosFace: Large Margin Cosine Loss. No departure.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`.
        scale: s > 0; default 64, as in the paper.
        margin: m ≥ 0; default 0.35, as in the paper.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    return cosine_softmax(embeddings, labels, class_weights, scale, cosine_margin=margin)
