"""Normalised softmax: classification as proxy-based metric learning."""

from __future__ import annotations

import torch

from dml_losses.functional.classes import ClassWeights
from dml_losses.functional.cosine_softmax import cosine_softmax


def norm_softmax(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    *,
    temperature: float = 0.05,
) -> torch.Tensor:
    """Compute the softmax cross entropy of cosines divided by a temperature.

    L = −mean_b log( exp(x̂_bᵀp̂_y/σ) / Σ_c exp(x̂_bᵀp̂_c/σ) )

    where x̂ and p̂ are the L2-normalised embeddings and class weights. There is no bias.

    Source: Making Classification Competitive for Deep Metric Learning, Eq. 5. No departure.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`.
        temperature: σ > 0; default 0.05, as in the paper.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    return cosine_softmax(embeddings, labels, class_weights, 1 / temperature)
