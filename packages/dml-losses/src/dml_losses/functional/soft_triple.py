"""SoftTriple: multiple centres per class, softly assigned.

Shapes: `B` batch, `C` classes, `K` centres per class, `D` dim.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from dml_losses.functional.classes import class_inputs
from dml_losses.functional.sphere import cosines, unit_rows


def soft_triple(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    class_weights: torch.Tensor,
    *,
    centers_per_class: int = 10,
    scale: float = 20.0,
    center_temperature: float = 0.1,
    margin: float = 0.01,
    merge_weight: float = 0.2,
) -> torch.Tensor:
    """Compute the softmax cross entropy over classes with multiple centres, plus a penalty that
    draws centres together.

    L = −mean_b log( e^{λ(S_y − δ)} / (e^{λ(S_y − δ)} + Σ_{c≠y} e^{λS_c}) ) + τ/(C·K(K−1)) · Σ_c R_c
    S_c = Σ_k softmax_k(x̂ᵀŵ_ck / γ)·x̂ᵀŵ_ck,  R_c = Σ_{k<l} √(2 − 2·ŵ_ckᵀŵ_cl)

    Source: Qian et al. 2019, SoftTriple Loss. Departure: 1e-5 under the root, as in the authors'
    code, keeps the gradient finite if two centres coincide.

    Args:
        embeddings, labels, class_weights: (B, D), (B,) and (C·K, D); see `dml_losses.functional`.
        centers_per_class: K ≥ 1; default 10, as in the paper.
        scale: λ > 0; default 20, as in the paper.
        center_temperature: γ > 0; default 0.1, as in the paper.
        margin: δ ≥ 0; default 0.01, as in the paper.
        merge_weight: τ ≥ 0; default 0.2, as in the paper.

    Returns:
        The loss, a scalar. The first term is zero if there is only one class, the second if K = 1.
    """
    features_BD, labels, weights = class_inputs(
        embeddings, labels, class_weights, centers_per_class
    )
    similarity_BCK = cosines(features_BD, weights).reshape(len(features_BD), -1, centers_per_class)
    share_BCK = (similarity_BCK / center_temperature).softmax(dim=2)
    similarity_BC = (share_BCK * similarity_BCK).sum(dim=2)
    label_B1 = labels[:, None]
    true_B1 = similarity_BC.gather(1, label_B1) - margin
    loss = cross_entropy(scale * similarity_BC.scatter(1, label_B1, true_B1), label_B1.squeeze(1))
    if centers_per_class == 1 or merge_weight == 0:
        return loss
    centers_CKD = unit_rows(weights).reshape(-1, centers_per_class, weights.shape[1])
    with torch.autocast(weights.device.type, enabled=False):
        between_CKK = centers_CKD @ centers_CKD.mT
    # With TF32, a GPU can compute a cosine that exceeds 1 by more than 1e-5.
    distance_CKK = (2 - 2 * between_CKK + 1e-5).clamp_min(1e-5).sqrt()
    num_pairs = len(centers_CKD) * centers_per_class * (centers_per_class - 1)
    return loss + merge_weight * distance_CKK.triu(diagonal=1).sum() / num_pairs
