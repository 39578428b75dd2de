"""CosFace: a margin subtracted from the true class's cosine."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.cosine_softmax import Virtual, cosine_softmax
from dml_losses.functional.sphere import common_precision, unit_rows


def cos_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.35,
    virtual: Virtual | None = None,
) -> torch.Tensor:
    """Compute the cross entropy of a softmax of scaled cosines, with a margin subtracted from the true class's.

    L = −mean_b log( e^{s(cos θ_y − m)} / (e^{s(cos θ_y − m)} + Σ_{c≠y} e^{s·cos θ_c}) )

    Source: Wang et al. 2018, CosFace: Large Margin Cosine Loss. No departure.

    Args:
        embeddings: (B, D), any floating dtype, not necessarily normalised.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype, not necessarily normalised.
        scale: s > 0; 64 in the paper.
        margin: m ≥ 0; 0.35 in the paper.
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
    return cosine_softmax(
        unit_rows(features_BD), labels, weights_CD, scale, cosine_margin=margin, virtual=virtual
    )
