"""Normalised softmax: classification as proxy-based metric learning."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.cosine_softmax import Virtual, cosine_softmax
from dml_losses.functional.sphere import common_precision, unit_rows


def norm_softmax(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    temperature: float = 0.05,
    virtual: Virtual | None = None,
) -> torch.Tensor:
    """Compute the cross entropy of a softmax of cosines over a temperature.

    L = −mean_b log( exp(x̂_bᵀp̂_y/σ) / Σ_c exp(x̂_bᵀp̂_c/σ) )

    where x̂ and p̂ are the L2-normalised embeddings and class weights. There is no bias.

    Source: Making Classification Competitive for Deep Metric Learning, Eq. 5. No departure.

    Args:
        embeddings: (B, D), any floating dtype, not necessarily normalised.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype, not necessarily normalised.
        temperature: σ > 0; 0.05 in the paper.
        virtual: further embeddings and classes, constant to the gradient (MemVir).

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64). Zero if there is one class.

    Raises:
        TypeError: for embeddings or weights that aren't floating, or labels that aren't integers.
        ValueError: for shapes that don't fit, an empty batch, or (on CPU tensors) a label outside [0, C).
    """
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights)
    features_BD, weights_CD = common_precision(embeddings, class_weights)
    return cosine_softmax(unit_rows(features_BD), labels, weights_CD, 1 / temperature, virtual=virtual)
