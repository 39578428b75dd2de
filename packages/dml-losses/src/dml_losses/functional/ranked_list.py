"""Ranked list loss: the mean violation of a query's positives, and of its negatives, weighted by
the violation.

Shapes: `B` batch (the queries), `G` gallery, `D` dim, `R` queries per block, `P` columns that can
contain positives.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from dml_losses.arguments import check_choice
from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block, WeightedQueries

QueryWeights = Literal["equal", "total"]


def ranked_list(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    margin: float = 0.4,
    alpha: float = 1.2,
    negative_temperature: float = 10.0,
    positive_temperature: float = 0.0,
    balance: float = 0.5,
    query_weights: QueryWeights = "equal",
) -> torch.Tensor:
    """Compute the loss that puts negatives beyond a boundary α, and positives inside a hypersphere
    of diameter α − m.

    L = Σ_q ω_q·((1 − λ)·L_P(q) + λ·L_N(q)),  ω_q = 1/B
    L_P(q) = Σ_{i ∈ P*} w_i·(d_qi − (α − m)) / Σ w_i,  w_i = exp(T_p·(d_qi − (α − m)))
    L_N(q) = Σ_{j ∈ N*} w_j·(α − d_qj) / Σ w_j,  w_j = exp(T_n·(α − d_qj))

    where P* are the positives with d_qi > α − m, N* the negatives with d_qj < α, and d is the
    Euclidean distance between L2-normalised embeddings. The gradient treats the weights as
    constants, and all features except the query's, so that only the query moves in each term. The
    authors' code weights queries by the weights of all their pairs: use `query_weights` "total" for
    ω_q = W_q / Σ_q' W_q', W_q = Σ_{i ∈ P*} w_i + Σ_{j ∈ N*} w_j, which is also a constant. Then
    queries with many or strong violations dominate the batch.

    Source: Ranked List Loss for Deep Metric Learning, Eq. 8-14 and the end of section 3.2.4, which
    only moves the query, like the authors' code. The weights are constants in their code; the paper
    doesn't say.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. The gallery
            doesn't get a gradient.
        margin: m, between both boundaries; default 0.4, as in the paper. The authors' code uses 0.2
            on CUB.
        alpha: α, the smallest distance for negatives on the unit sphere (diameter 2); default 1.2,
            as in the paper.
        negative_temperature: T_n; default 10, as in the paper. Use 0 to weight all violating
            negatives equally.
        positive_temperature: T_p; default 0, as in the paper. If it is below 0, nearer positives
            get a larger weight.
        balance: λ in [0, 1]; default 0.5, as in the paper.
        query_weights: ω, "equal" as in Eq. 14, or "total" as in the authors' code.

    Returns:
        The loss, a scalar. If a query has no violating positives (negatives), L_P (L_N) is zero;
        without violations, the loss is a zero that back-propagates. A row at distance 0 from the
        query has no direction, and no gradient.

    Raises:
        ValueError: if `query_weights` is unknown.
    """
    check_choice("query_weights", query_weights, get_args(QueryWeights))
    return _loss(
        embeddings,
        labels,
        gallery,
        gallery_labels,
        alpha - margin,
        alpha,
        positive_temperature,
        negative_temperature,
        balance,
        query_weights == "total",
        moves_gallery=False,
    )


def _terms(
    block: Block,
    positive_boundary: float,
    negative_boundary: float,
    positive_temperature: float,
    negative_temperature: float,
    balance: float,
    by_total: bool,
) -> torch.Tensor | WeightedQueries:
    distance_RG = (
        torch.rsub(block.similarity, 2, alpha=2).clamp_min_(0).sqrt_()
    )  # ‖a − b‖² = 2 − 2·aᵀb
    distance_RP = distance_RG[:, block.columns].clone()
    # A pair at the boundary isn't a violation, so move pairs that aren't in a set to its boundary.
    distance_RG[:, block.columns].masked_fill_(block.same, negative_boundary)
    distance_RP.masked_fill_(~block.positive, positive_boundary)

    violation_RG, violation_RP = (
        torch.rsub(distance_RG, negative_boundary),
        distance_RP - positive_boundary,
    )
    weight_RG, log_total_N = _weights(violation_RG, negative_temperature, out=block.similarity)
    weight_RP, log_total_P = _weights(violation_RP, positive_temperature)
    if by_total:
        value_P, value_N = (
            (w * v).sum(dim=1) for w, v in ((weight_RP, violation_RP), (weight_RG, violation_RG))
        )
        share = 1
    else:
        value_P, value_N = (
            torch.dot(w.flatten(), v.flatten())
            for w, v in ((weight_RP, violation_RP), (weight_RG, violation_RG))
        )
        share = block.num_queries
    # Multiply ∂L/∂d by ∂d/∂(aᵀb) = −1/d. Distances below √eps are rounding errors of the product,
    # so bound the divisor.
    smallest = torch.finfo(distance_RG.dtype).eps ** 0.5
    weight_RG.mul_(balance / share).div_(distance_RG.clamp_min_(smallest))
    weight_RP.mul_((balance - 1) / share).div_(distance_RP.clamp_min_(smallest))
    weight_RG[:, block.columns] += weight_RP  # the weights were zero for pairs with the same label
    value = ((1 - balance) * value_P + balance * value_N) / share
    return WeightedQueries(value, torch.logaddexp(log_total_P, log_total_N)) if by_total else value


def _weights(
    violation: torch.Tensor, temperature: float, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Eq. 9-12 by rows: the normalised weights, and the logarithm of the sum before
    normalisation, (R,).
    """
    inside = violation <= 0
    logits = torch.mul(violation, temperature, out=out).masked_fill_(inside, -torch.inf)
    highest = logits.amax(dim=1, keepdim=True)
    highest = highest.where(highest > -torch.inf, 0)
    total = logits.sub_(highest).exp_().sum(dim=1, keepdim=True)
    weights = logits.div_(total.where(total > 0, 1))
    return weights, (highest + total.log()).squeeze(1)


_loss = pair_operator(
    "ranked_list",
    "float positive_boundary, float negative_boundary, float positive_temperature, float "
    "negative_temperature, float balance, bool by_total",
    _terms,
)
