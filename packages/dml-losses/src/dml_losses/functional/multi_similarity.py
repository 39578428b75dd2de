"""Multi-similarity loss: the hardest pairs of a query, selected and weighted by their similarity.

Shapes: `B` batch (the queries), `G` gallery, `D` dim, `R` queries per block, `P` columns that can
contain positives.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block
from dml_losses.functional.proxy_anchor import softplus_of_logsumexp


def multi_similarity(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    threshold: float = 0.5,
    epsilon: float = 0.1,
) -> torch.Tensor:
    """Compute soft maxima of a query's violations, one over selected positives, one over selected
    negatives.

    L = 1/B · Σ_q ( 1/α · log(1 + Σ_{i ∈ P_q} exp(−α(s_qi − λ)))
    + 1/β · log(1 + Σ_{j ∈ N_q} exp(β(s_qj − λ))) )

    where s are cosines. P_q are the positives with s_qi − ε < max s of the query's negatives, and
    N_q are the negatives with s_qj + ε > min s of the query's positives. The selection is a
    constant.

    Source: Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting for Deep Metric
    Learning. Departure from the authors' code, but not from the paper: positives with s ≥ 1 − 1e-5
    aren't dropped.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            queries.
        alpha: α > 0; default 2, as in the paper.
        beta: β > 0; default 50, as in the paper (40 in the authors' code).
        threshold: λ; default 0.5, as in the authors' code (1 in the paper).
        epsilon: ε ≥ 0; default 0.1, as in the paper. If it exceeds 2, all pairs are selected.

    Returns:
        The loss, a scalar. A query without a positive, or without a negative, adds zero.
    """
    return _loss(embeddings, labels, gallery, gallery_labels, alpha, beta, threshold, epsilon)


def _terms(
    block: Block, alpha: float, beta: float, threshold: float, epsilon: float
) -> torch.Tensor:
    negative_RG = block.similarity
    positive_RP = negative_RG[:, block.columns].masked_fill(~block.positive, torch.inf)
    negative_RG[:, block.columns].masked_fill_(block.same, -torch.inf)
    lowest_R1, highest_R1 = (
        positive_RP.amin(dim=1, keepdim=True),
        negative_RG.amax(dim=1, keepdim=True),
    )
    # These comparisons are false for NaN, so that NaN stays selected.
    positive_RP.masked_fill_(positive_RP - epsilon >= highest_R1, torch.inf).sub_(threshold).mul_(
        -alpha
    )
    negative_RG.masked_fill_(negative_RG + epsilon <= lowest_R1, -torch.inf).sub_(threshold).mul_(
        beta
    )
    value = softplus_of_logsumexp(positive_RP) / alpha + softplus_of_logsumexp(negative_RG) / beta
    negative_RG[:, block.columns] -= (
        positive_RP  # the weights were zero for pairs with the same label
    )
    negative_RG.div_(block.num_queries)
    return value / block.num_queries


_loss = pair_operator(
    "multi_similarity", "float alpha, float beta, float threshold, float epsilon", _terms
)
