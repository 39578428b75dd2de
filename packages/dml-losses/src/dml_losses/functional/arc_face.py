"""ArcFace: a margin added to the true class's angle."""

from __future__ import annotations

import torch

from dml_losses.functional.classes import ClassWeights
from dml_losses.functional.cosine_softmax import cosine_softmax


def arc_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> torch.Tensor:
    """Compute the softmax cross entropy of scaled cosines, with a margin added to the true class's
    angle.

    L = −mean_b log( e^{s·cos(θ_y + m)} / (e^{s·cos(θ_y + m)} + Σ_{c≠y} e^{s·cos θ_c}) )

    Source: Deng et al. 2019, ArcFace, Eq. 3. If θ_y + m exceeds π, `cosine_softmax` follows the
    authors' code.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`.
        scale: s > 0; default 64, as in the paper.
        margin: m in radians, in [0, π/2); default 0.5, as in the paper.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    return cosine_softmax(embeddings, labels, class_weights, scale, angular_margin=margin)
