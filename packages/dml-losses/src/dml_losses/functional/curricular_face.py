"""CurricularFace: the weight of hard negatives grows during training.

Shapes: `B` batch, `C` classes, `D` dim.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy

from dml_losses.arguments import check_batch, check_class_weights
from dml_losses.functional.sphere import common_precision, cosines, unit_rows


def curricular_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    progress: torch.Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> torch.Tensor:
    """Compute ArcFace with hard negatives that are modulated by how well batches fit their classes.

    L = −mean_b log( e^{s·T} / (e^{s·T} + Σ_{c≠y} e^{s·N_c}) ),  T = cos(θ_y + m),
    N_c = cos θ_c if cos θ_c ≤ cos(θ_y + m), else cos θ_c·(t + cos θ_c)

    Source: Huang et al. 2020, CurricularFace. Where θ_y + m exceeds π, T is cos θ_y − m·sin m, as in the
    authors' code; the negatives are still compared with cos(θ_y + m).

    Args:
        embeddings: (B, D), any floating dtype, not necessarily normalised.
        labels: (B,), integer in [0, C).
        class_weights: (C, D), any floating dtype, not necessarily normalised.
        progress: t, a scalar tensor; `CurricularFace` updates it.
        scale: s > 0; 64 in the paper.
        margin: m in radians, in [0, π/2); 0.5 in the paper.

    Returns:
        The loss, a scalar in float32 (float64 if either side is float64). Zero if there is one class.

    Raises:
        TypeError: for embeddings or weights that aren't floating, or labels that aren't integers.
        ValueError: for shapes that don't fit, an empty batch, or (on CPU tensors) a label outside [0, C).
    """
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights)
    features_BD, weights_CD = common_precision(embeddings, class_weights)
    label_B1 = labels.long()[:, None]
    cosine_BC = cosines(features_BD, weights_CD)
    true_B1 = cosine_BC.gather(1, label_B1).clamp(-1, 1)
    turned_B1 = turn(true_B1, margin)
    target_B1 = torch.where(true_B1 > -math.cos(margin), turned_B1, true_B1 - margin * math.sin(margin))
    hard_BC = cosine_BC > turned_B1
    modulated_BC = torch.where(hard_BC, cosine_BC * (progress + cosine_BC), cosine_BC)
    logits_BC = modulated_BC.scatter(1, label_B1, target_B1) * scale
    return cross_entropy(logits_BC, label_B1.squeeze(1))


def turn(cosine: torch.Tensor, angle: float) -> torch.Tensor:
    """Compute cos(θ + m) from cos θ, which is in [−1, 1], and an angle m in radians; θ + m may exceed π."""
    # The gradient of √ at 0 is infinite; the floor is the smallest 1 − cos² above 0 that the dtype resolves.
    sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
    return cosine * math.cos(angle) - sine * math.sin(angle)


def mean_true_cosine(
    embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor
) -> torch.Tensor:
    """Compute the mean of cos θ_y over the batch; t is its moving average. Arguments as `curricular_face`."""
    check_batch(embeddings, labels)
    check_class_weights(embeddings, labels, class_weights)
    features_BD, weights_CD = common_precision(embeddings, class_weights)
    return (unit_rows(features_BD) * unit_rows(weights_CD[labels.long()])).sum(dim=1).mean()
