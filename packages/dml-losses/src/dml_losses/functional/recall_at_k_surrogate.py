"""Recall@k surrogate: recall with sigmoids instead of steps, for ranks and for cut-offs.

Shapes: `B` batch (the queries), `G` gallery, `D` dim, `R` queries per block, `I` positives per
query, `K` cut-offs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block
from dml_losses.functional.smooth_ranks import RankLoss, rank_terms, sigmoid_step


def recall_at_k_surrogate(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 8, 16),
    k_temperatures: Sequence[float] | None = None,
    rank_temperature: float = 0.01,
) -> torch.Tensor:
    """Compute one minus the mean recall at multiple cut-offs, with sigmoids instead of steps.

    L = mean_q mean_k (1 − R_qk),  R_qk = min(k, Σ_{i ∈ P_q} σ((k − r_i)/τ_k)) / min(k, |P_q|)
    r_i = 1 + Σ_{j ≠ i} σ((s_qj − s_qi)/τ)

    where s are cosines, P_q are the query's positives, and j runs over all rows except the query.
    This takes the time of P_q × G sigmoids per query, but only the memory of a block of
    similarities.

    Source: Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup, and
    the authors' code for both minima and for τ_k = k; without the mixup. Departure: the mean only
    includes queries that have a positive.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            queries.
        ks: the cut-offs k ≥ 1; default 1, 2, 4, 8, 16, as in the authors' code.
        k_temperatures: τ_k > 0 per cut-off; by default, k itself, as in the authors' code.
        rank_temperature: τ > 0; default 0.01, as in the authors' code.

    Returns:
        The loss, a scalar; zero, with a zero gradient, if no query has a positive.

    Raises:
        ValueError: if there aren't as many temperatures as cut-offs, or a value is out of range.
    """
    cutoffs, temperatures = check_cutoffs(ks, k_temperatures)
    return _loss(
        embeddings, labels, gallery, gallery_labels, cutoffs, temperatures, rank_temperature
    )


def check_cutoffs(
    ks: Sequence[int], k_temperatures: Sequence[float] | None
) -> tuple[list[float], list[float]]:
    """Check the cut-offs and their temperatures, and return both.

    Raises:
        ValueError: if there are no cut-offs, a cut-off is below 1, or there isn't a positive
            temperature per cut-off.
    """
    if not ks or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in ks):
        raise ValueError(f"ks is {ks!r}; expected integers of at least 1, such as [1, 2, 4]")
    temperatures = list(ks) if k_temperatures is None else list(k_temperatures)
    if len(temperatures) != len(ks) or any(
        not 0 < temperature < float("inf") for temperature in temperatures
    ):
        raise ValueError(
            f"k_temperatures is {k_temperatures!r}; expected a finite number above 0 for each of "
            f"ks, {list(ks)}"
        )
    return [float(k) for k in ks], [float(temperature) for temperature in temperatures]


def _terms(
    block: Block, ks: list[float], k_temperatures: list[float], rank_temperature: float
) -> torch.Tensor:
    def loss(above_RI: torch.Tensor, below_RI: torch.Tensor, present_RI: torch.Tensor) -> RankLoss:
        rank_RI = 1 + above_RI + below_RI
        losses_R, slope_RI = block.num_positives.new_zeros(len(rank_RI)), torch.zeros_like(rank_RI)
        matched_R = (block.num_positives > 0).to(rank_RI.dtype)
        for k, temperature in zip(ks, k_temperatures, strict=True):
            within_RI = ((k - rank_RI) / temperature).sigmoid() * present_RI
            found_R = within_RI.sum(dim=1)
            share_R = matched_R / block.num_positives.clamp(1, k) / len(ks)
            losses_R += matched_R / len(ks) - found_R.clamp_max(k) * share_R
            share_R = share_R * (found_R < k) / temperature
            slope_RI += within_RI * (1 - within_RI) * share_R[:, None]
        return RankLoss(losses_R, slope_RI, slope_RI)

    step = sigmoid_step(rank_temperature)
    return rank_terms(block, step, step, loss)


_loss = pair_operator(
    "recall_at_k_surrogate", "float[] ks, float[] k_temperatures, float rank_temperature", _terms
)
