"""AdaFace: margins that depend on the length of the embedding.

Shapes: `N` rows, `D` dim.
"""

from __future__ import annotations

import torch

from dml_losses.functional.classes import ClassWeights
from dml_losses.functional.cosine_softmax import cosine_softmax
from dml_losses.functional.sphere import full_precision

_SHORTEST, _LONGEST, _EPSILON = 1e-3, 100.0, 1e-3


def ada_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: ClassWeights,
    norm_mean: torch.Tensor,
    norm_std: torch.Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.4,
    concentration: float = 0.333,
) -> torch.Tensor:
    """Compute the softmax of scaled cosines, with margins at the true class that follow the embedding's length.

    L = −mean_b log( e^{s·φ_b} / (e^{s·φ_b} + Σ_{c≠y} e^{s·cos θ_c}) ),  φ_b = cos(θ_y − m·q_b) − m·(1 + q_b)
    q_b = (‖x_b‖ − μ)/σ · h, limited to [−1, 1]

    Long embeddings, those of clear images, have a margin of CosFace's kind, and short ones of ArcFace's.

    Source: Kim et al. 2022, AdaFace: Quality Adaptive Margin for Face Recognition, and the authors' code, where q is a
    constant, lengths are limited to [0.001, 100], 0.001 is added to σ, and θ_y − m·q to [0, π]. Departure: that code
    also keeps all angles 0.001 from 0 and π.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`. The length of
            embeddings is a measure of quality, so a network must not normalise them.
        norm_mean, norm_std: μ and σ, scalar tensors; `AdaFace` updates them.
        scale: s > 0; 64 in the paper.
        margin: m in [0, π/2); 0.4 in the paper.
        concentration: h ≥ 0; 0.333 in the paper. With 0 it is CosFace.

    Returns:
        The loss, a scalar. Zero if there is one class.
    """
    return cosine_softmax(
        embeddings,
        labels,
        class_weights,
        scale,
        row_margins=lambda rows: _quality_margins(rows, norm_mean, norm_std, margin, concentration),
    )


@torch.no_grad()
def limited_norms(embeddings: torch.Tensor) -> torch.Tensor:
    """Compute ‖x‖ within [0.001, 100], (N,) in float32 at least, a constant."""
    norms_N: torch.Tensor = torch.linalg.vector_norm(full_precision(embeddings), dim=1)
    return norms_N.clamp(_SHORTEST, _LONGEST)


@torch.no_grad()
def _quality_margins(
    rows: torch.Tensor, norm_mean: torch.Tensor, norm_std: torch.Tensor, margin: float, concentration: float
) -> torch.Tensor:
    """Compute the angular margins −m·q and the additive ones m·(1 + q) of rows (N, D), (N, 2)."""
    norms = limited_norms(rows)
    quality_N = (norms - norm_mean.to(norms)) / (norm_std.to(norms) + _EPSILON) * concentration
    quality_N = quality_N.clamp(-1, 1)
    return torch.stack((-margin * quality_N, margin * (1 + quality_N)), dim=1)
