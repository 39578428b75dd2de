"""AdaFace: margins that depend on the length of the embedding.

Shapes: `B` batch, `P` constant rows, `N` = B + P, `C` classes, `D` dim.
"""

from __future__ import annotations

import torch

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.cosine_softmax import Virtual, cosine_softmax
from dml_losses.functional.sphere import common_precision, full_precision, unit_rows

_SHORTEST, _LONGEST, _EPSILON = 1e-3, 100.0, 1e-3


def ada_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    norm_mean: torch.Tensor,
    norm_std: torch.Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.4,
    concentration: float = 0.333,
    virtual: Virtual | None = None,
) -> torch.Tensor:
    """Compute the softmax of scaled cosines, with margins at the true class that follow the embedding's length.

    L = −mean_b log( e^{s·φ_b} / (e^{s·φ_b} + Σ_{c≠y} e^{s·cos θ_c}) ),  φ_b = cos(θ_y − m·q_b) − m·(1 + q_b)
    q_b = (‖x_b‖ − μ)/σ · h, limited to [−1, 1]

    Long embeddings, those of clear images, have a margin of CosFace's kind, and short ones of ArcFace's.

    Source: Kim et al. 2022, AdaFace: Quality Adaptive Margin for Face Recognition, and the authors' code, where q is a
    constant, lengths are limited to [0.001, 100], 0.001 is added to σ, and θ_y − m·q to [0, π]. Departure: that code
    also keeps all angles 0.001 from 0 and π.

    Args:
        embeddings: (B, D), any floating dtype, not normalised: their length is a measure of quality.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype, not necessarily normalised.
        norm_mean, norm_std: μ and σ, scalar tensors; `AdaFace` updates them.
        scale: s > 0; 64 in the paper.
        margin: m in [0, π/2); 0.4 in the paper.
        concentration: h ≥ 0; 0.333 in the paper. With 0 it is CosFace.
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
    norms_N = limited_norms(features_BD)
    if virtual is not None:
        norms_N = torch.cat((norms_N, limited_norms(virtual.embeddings.to(norms_N))))
    return cosine_softmax(
        unit_rows(features_BD),
        labels,
        weights_CD,
        scale,
        row_margins=quality_margins(norms_N, norm_mean, norm_std, margin, concentration),
        virtual=virtual,
    )


@torch.no_grad()
def limited_norms(embeddings: torch.Tensor) -> torch.Tensor:
    """Compute ‖x‖ within [0.001, 100], (N,) in float32 at least, a constant."""
    norms_N: torch.Tensor = torch.linalg.vector_norm(full_precision(embeddings), dim=1)
    return norms_N.clamp(_SHORTEST, _LONGEST)


@torch.no_grad()
def quality_margins(
    norms: torch.Tensor,
    norm_mean: torch.Tensor,
    norm_std: torch.Tensor,
    margin: float,
    concentration: float,
) -> torch.Tensor:
    """Compute the angular margins −m·q and the additive ones m·(1 + q) of rows of these norms, (N, 2)."""
    quality_N = (norms - norm_mean.to(norms)) / (norm_std.to(norms) + _EPSILON) * concentration
    quality_N = quality_N.clamp(-1, 1)
    return torch.stack((-margin * quality_N, margin * (1 + quality_N)), dim=1)
