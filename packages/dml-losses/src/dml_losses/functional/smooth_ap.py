"""Smooth-AP: average precision with sigmoids instead of steps.

Shapes: `B` batch (the queries), `G` gallery, `D` dim, `R` queries per block, `I` positives per
query, at most.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block
from dml_losses.functional.smooth_ranks import RankLoss, rank_terms, sigmoid_step


def smooth_ap(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    temperature: float = 0.01,
) -> torch.Tensor:
    """Compute one minus the mean average precision, with sigmoids instead of the steps of ranks.

    L = mean_q (1 − AP_q),  AP_q = mean over the positives i of (1 + A_i)/(1 + A_i + B_i)
    A_i = Σ_{j ∈ P_q, j≠i} σ((s_qj − s_qi)/τ),  B_i = Σ_{j ∈ N_q} σ((s_qj − s_qi)/τ)

    where s are cosines, P_q are the query's positives, and N_q its negatives. This takes the time
    of P_q × (P_q ∪ N_q) sigmoids per query, but only the memory of a block of similarities.

    Source: Brown et al. 2020, Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval.
    Departure: the mean only includes queries that have a positive, and a query isn't a positive for
    itself, unlike in the authors' code.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            queries.
        temperature: τ > 0; default 0.01, as in the paper.

    Returns:
        The loss, a scalar; zero, with a zero gradient, if no query has a positive, or no query has
        a negative.
    """
    return _loss(embeddings, labels, gallery, gallery_labels, temperature)


def precision_loss(
    above_RI: torch.Tensor, below_RI: torch.Tensor, present_RI: torch.Tensor
) -> RankLoss:
    """Compute 1 − AP = mean_i B/(1 + A + B) for each query; see `rank_terms`."""
    weight_RI = present_RI.to(above_RI.dtype)
    weight_RI /= weight_RI.sum(dim=1, keepdim=True).clamp_min(1)
    rank_RI = 1 + above_RI + below_RI
    slope_RI = weight_RI / rank_RI.square()
    return RankLoss(
        (weight_RI * below_RI / rank_RI).sum(dim=1), -below_RI * slope_RI, (1 + above_RI) * slope_RI
    )


def _terms(block: Block, temperature: float) -> torch.Tensor:
    step = sigmoid_step(temperature)
    return rank_terms(block, step, step, precision_loss)


_loss = pair_operator("smooth_ap", "float temperature", _terms)
