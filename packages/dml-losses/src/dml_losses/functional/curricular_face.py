"""CurricularFace: the weight of hard negatives grows during training.

Shapes: `B` batch, `C` classes, `D` dim.
"""

from __future__ import annotations

import torch

from dml_core import ClassShard
from dml_losses.exchange import all_reduce_
from dml_losses.functional.classes import class_inputs
from dml_losses.functional.cosine_softmax import cosine_softmax
from dml_losses.functional.sphere import unit_rows


def curricular_face(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor | ClassShard,
    progress: torch.Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
) -> torch.Tensor:
    """Compute ArcFace with hard negatives, modulated by how well batches already fit their classes.

    L = −mean_b log( e^{s·T} / (e^{s·T} + Σ_{c≠y} e^{s·N_c}) ),  T = cos(θ_y + m),
    N_c = cos θ_c if cos θ_c ≤ cos(θ_y + m), else cos θ_c·(t + cos θ_c)

    Source: Huang et al. 2020, CurricularFace. If θ_y + m exceeds π, T is cos θ_y − m·sin m, as in
    the authors' code, but the negatives are still compared with cos(θ_y + m).

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C, D); see `dml_losses.functional`.
        progress: t, a scalar tensor; `CurricularFace` updates it.
        scale: s > 0; default 64, as in the paper.
        margin: m in radians, in [0, π/2); default 0.5, as in the paper.

    Returns:
        The loss, a scalar; zero if there is only one class.
    """
    return cosine_softmax(
        embeddings, labels, class_weights, scale, angular_margin=margin, progress=progress
    )


@torch.no_grad()
def mean_true_cosine(
    embeddings: torch.Tensor, labels: torch.Tensor, class_weights: torch.Tensor | ClassShard
) -> torch.Tensor:
    """Compute the mean of cos θ_y over the batch; its moving average is t. For arguments, see
    `curricular_face`.
    """
    features_BD, labels, weights = class_inputs(embeddings, labels, class_weights)
    unit_BD = unit_rows(features_BD)
    if isinstance(class_weights, torch.Tensor):
        return (unit_BD * unit_rows(weights[labels])).sum(dim=1).mean()
    column_B = labels - class_weights.first
    own_B = (column_B >= 0) & (column_B < len(weights))  # whether the true class is on this rank
    true_B = unit_BD.new_zeros(len(labels))
    if len(weights):
        weights_BD = unit_rows(weights[column_B.where(own_B, 0)])
        true_B = (unit_BD * weights_BD).sum(dim=1).where(own_B, 0)
    return all_reduce_(true_B).mean()
