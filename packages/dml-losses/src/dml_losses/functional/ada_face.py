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
    """Compute the softmax cross entropy of scaled cosines, with margins that follow the embedding's
    length.

    L = −mean_b log( e^{s·φ_b} / (e^{s·φ_b} + Σ_{c≠y} e^{s·cos θ_c}) ),
    φ_b = cos(θ_y − m·q_b) − m·(1 + q_b)
    q_b = (‖x_b‖ − μ)/σ · h, limited to [−1, 1]

    Long embeddings (of clear images) get a margin like CosFace's, and short embeddings a margin
    like ArcFace's.

    Source: Kim et al. 2022, AdaFace: Quality Adaptive Margin for Face Recognition, and the authors'
    code: q is constant, lengths are limited to [0.001, 100] and θ_y − m·q to [0, π], and 0.001 is
    added to σ. Departure: that code also keeps all angles 0.001 from 0 and π.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`. The
            network must not normalise embeddings, since their length measures image quality.
        norm_mean, norm_std: μ and σ, scalar tensors; `AdaFace` updates them.
        scale: s > 0; default 64, as in the paper.
        margin: m in [0, π/2); default 0.4, as in the paper.
        concentration: h ≥ 0; default 0.333, as in the paper. If it is 0, the loss is CosFace.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    return cosine_softmax(
        embeddings,
        labels,
        class_weights,
        scale,
        row_margins=lambda rows: _quality_margins(rows, norm_mean, norm_std, margin, concentration),
    )


@torch.no_grad()
def limit_norms(embeddings: torch.Tensor) -> torch.Tensor:
    """Compute ‖x‖, limited to [0.001, 100], as a constant (N,) in at least float32."""
    norms_N: torch.Tensor = torch.linalg.vector_norm(full_precision(embeddings), dim=1)
    return norms_N.clamp(_SHORTEST, _LONGEST)


@torch.no_grad()
def _quality_margins(
    rows: torch.Tensor,
    norm_mean: torch.Tensor,
    norm_std: torch.Tensor,
    margin: float,
    concentration: float,
) -> torch.Tensor:
    """Compute, for rows (N, D), the angular margins −m·q and the additive margins m·(1 + q), (N,
    2).
    """
    norms = limit_norms(rows)
    quality_N = (norms - norm_mean.to(norms)) / (norm_std.to(norms) + _EPSILON) * concentration
    quality_N = quality_N.clamp(-1, 1)
    return torch.stack((-margin * quality_N, margin * (1 + quality_N)), dim=1)
