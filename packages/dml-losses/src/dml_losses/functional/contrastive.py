"""Contrastive loss: positives are drawn together, negatives are pushed apart up to a margin.

Shapes: `B` batch (the queries), `G` gallery, `D` dim, `R` queries per block, `P` columns that can
contain positives.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block


def contrastive(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    margin: float = 1.0,
) -> torch.Tensor:
    """Compute half the squared distance of positives, plus half the squared shortfall of negatives
    within the margin.

    L = 1/B · Σ_q ( mean_{i ∈ P_q} ½·d_qi² + mean_{j ∈ V_q} ½·(m − d_qj)² )

    where d are distances on the unit sphere, P_q are the query's positives, and V_q its negatives
    with d_qj < m.

    Source: Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping.
    Departures: embeddings are normalised; the sum over pairs is replaced by means per query, over
    positives and over negatives within the margin, so that the balance between them doesn't depend
    on the size of the batch.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            queries.
        margin: m > 0; default 1, a half of the largest distance. In many dimensions, random rows
            have distance √2.

    Returns:
        The loss, a scalar. If a query has no positive, or no negative within the margin, that mean
        is zero. A negative at distance 0 has no direction, and no gradient.
    """
    return _loss(embeddings, labels, gallery, gallery_labels, margin)


def _terms(block: Block, margin: float) -> torch.Tensor:
    positive_RP = block.positive / (block.num_positives.clamp_min(1) * block.num_queries)[:, None]
    # ½·d² = 1 − aᵀb, whose derivative is constant.
    value = (
        (1 - block.similarity[:, block.columns]).where(block.positive, 0).mul_(positive_RP).sum()
    )

    distance_RG = block.similarity.mul_(-2).add_(2).clamp_min_(0).sqrt_()
    shortfall_RG = torch.rsub(distance_RG, margin).clamp_min_(0)
    shortfall_RG[:, block.columns].masked_fill_(block.same, 0)
    count_R1 = (shortfall_RG > 0).sum(dim=1, keepdim=True, dtype=shortfall_RG.dtype)
    share_R1 = 1 / (count_R1.clamp_min(1) * block.num_queries)
    value += (shortfall_RG.square().sum(dim=1, keepdim=True) * share_R1).sum() / 2

    # Multiply ∂L/∂d by ∂d/∂(aᵀb) = −1/d. Distances below √eps are rounding errors of the product,
    # so bound the divisor.
    smallest = torch.finfo(distance_RG.dtype).eps ** 0.5
    torch.div(shortfall_RG.mul_(share_R1), distance_RG.clamp_min_(smallest), out=block.similarity)
    block.similarity[:, block.columns] -= positive_RP
    return value


_loss = pair_operator("contrastive", "float margin", _terms)
