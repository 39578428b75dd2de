"""Sub-centre ArcFace: the margin of ArcFace to the nearest of a class's centres."""

from __future__ import annotations

import torch

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.cosine_softmax import Virtual, cosine_softmax
from dml_losses.functional.sphere import common_precision, unit_rows


def sub_center_arc_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    centers_per_class: int = 3,
    scale: float = 64.0,
    margin: float = 0.5,
    virtual: Virtual | None = None,
) -> torch.Tensor:
    """Compute ArcFace with several centres for each class, of which the nearest counts.

    L = −mean_b log( e^{s·cos(θ_y + m)} / (e^{s·cos(θ_y + m)} + Σ_{c≠y} e^{s·cos θ_c}) ),  cos θ_c = max_k x̂ᵀŵ_ck

    Source: Deng et al. 2020, Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy Web Faces. Where
    θ_y + m exceeds π, as in `arc_face`. The gradient reaches the nearest centre of each class alone.

    Args:
        embeddings: (B, D), any floating dtype, not necessarily normalised.
        labels: (B,), integer in [0, C).
        class_weights: (C·K, D); the centres of a class are consecutive.
        centers_per_class: K ≥ 1; 3 in the paper.
        scale: s > 0; 64 in the paper.
        margin: m in radians, in [0, π/2); 0.5 in the paper.
        virtual: further embeddings and classes with K centres each, constant to the gradient (MemVir).

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64). Zero if there is one class.

    Raises:
        TypeError: for embeddings or weights that aren't floating, or labels that aren't integers.
        ValueError: for shapes that don't fit, a number of rows that K doesn't divide, an empty batch, or (on CPU
            tensors) a label outside [0, C).
    """
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights, rows_per_class=centers_per_class)
    features_BD, weights = common_precision(embeddings, class_weights)
    return cosine_softmax(
        unit_rows(features_BD),
        labels,
        weights,
        scale,
        angular_margin=margin,
        centers_per_class=centers_per_class,
        virtual=virtual,
    )
