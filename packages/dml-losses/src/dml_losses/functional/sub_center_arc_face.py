"""Sub-centre ArcFace: ArcFace with the nearest of a class's centres."""

from __future__ import annotations

import torch

from dml_losses.functional.classes import ClassWeights
from dml_losses.functional.cosine_softmax import cosine_softmax


def sub_center_arc_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    *,
    centers_per_class: int = 3,
    scale: float = 64.0,
    margin: float = 0.5,
) -> torch.Tensor:
    """Compute ArcFace with multiple centres per class, using only the nearest centre.

    L = −mean_b log( e^{s·cos(θ_y + m)} / (e^{s·cos(θ_y + m)} + Σ_{c≠y} e^{s·cos θ_c}) ),
    cos θ_c = max_k x̂ᵀŵ_ck

    Source: Deng et al. 2020, Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy Web
    Faces. If θ_y + m exceeds π, see `arc_face`. Only the nearest centre of each class gets a
    gradient.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C·K, D); see `dml_losses.functional`.
        centers_per_class: K ≥ 1; default 3, as in the paper.
        scale: s > 0; default 64, as in the paper.
        margin: m in radians, in [0, π/2); default 0.5, as in the paper.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    return cosine_softmax(
        embeddings,
        labels,
        class_weights,
        scale,
        angular_margin=margin,
        centers_per_class=centers_per_class,
    )
