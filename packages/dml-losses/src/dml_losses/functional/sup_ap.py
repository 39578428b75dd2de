"""SupAP: average precision with an upper bound on the ranks of negatives.

Shapes: `B` batch (the queries), `G` gallery, `D` dim.
"""

from __future__ import annotations

import torch

from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Block
from dml_losses.functional.smooth_ap import precision_loss
from dml_losses.functional.smooth_ranks import Step, rank_terms, sigmoid_step


def sup_ap(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    temperature: float = 0.01,
    slope: float = 100.0,
    saturation: float = 0.05,
) -> torch.Tensor:
    """Compute one minus a lower bound of the mean average precision, whose gradient doesn't vanish
    for wrong ranks.

    L = mean_q (1 − AP_q),  AP_q = mean over the positives i of (1 + A_i)/(1 + A_i + B_i)
    A_i = |{j ∈ P_q, j≠i: s_qj ≥ s_qi}|,  B_i = Σ_{j ∈ N_q} H⁻(s_qj − s_qi)
    H⁻(d) = σ(d/τ) if d ≤ 0;  σ(d/τ) + 1/2 if 0 < d ≤ δ;  ρ(d − δ) + σ(δ/τ) + 1/2 if d > δ

    where s are cosines, P_q are the query's positives, and N_q its negatives. Since H⁻ is at least
    the step, L is at least 1 − AP. The counts A have no gradient. For time and memory, see
    `smooth_ap`.

    Source: Ramzi et al. 2021, Robust and Decomposable Average Precision for Image Retrieval
    (ROADMAP), the loss SupAP without its calibration loss. Departures: the mean only includes
    queries that have a positive; H⁻ is continuous at δ, but above δ the authors' code has ρ·d +
    1.44; and since L jumps if two similarities are equal, differences up to 32 ε of the dtype, a
    bound on rounding errors, count as zero.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            queries.
        temperature: τ > 0; default 0.01, as in the authors' code.
        slope: ρ > 0; default 100, as in the authors' code.
        saturation: δ ≥ 0; default 0.05, as in the authors' code.

    Returns:
        The loss, a scalar; zero, with a zero gradient, if no query has a positive, or no query has
        a negative.
    """
    return _loss(embeddings, labels, gallery, gallery_labels, temperature, slope, saturation)


def _bound_step(temperature: float, slope: float, saturation: float) -> Step:
    """Make the step H⁻."""
    sigmoid = sigmoid_step(temperature)

    def value(difference: torch.Tensor) -> torch.Tensor:
        beyond = (difference > _rounding(difference)).to(difference.dtype)
        step = sigmoid.value(difference.clamp_max(saturation)).add_(beyond, alpha=0.5)
        return step.add_(difference.sub(saturation).clamp_min_(0).mul_(slope))

    def derivative(difference: torch.Tensor) -> torch.Tensor:
        assert sigmoid.slope is not None
        return sigmoid.slope(difference).masked_fill_(difference > saturation, slope)

    return Step(value, derivative)


def _rounding(similarity: torch.Tensor) -> float:
    """Return a bound on the rounding of cosines, so that equal rows count as equal at any place in
    a block.
    """
    return 32 * torch.finfo(similarity.dtype).eps


def _terms(block: Block, temperature: float, slope: float, saturation: float) -> torch.Tensor:
    count = Step(
        lambda difference: (difference >= -_rounding(difference)).to(difference.dtype), None
    )
    return rank_terms(block, count, _bound_step(temperature, slope, saturation), precision_loss)


_loss = pair_operator("sup_ap", "float temperature, float slope, float saturation", _terms)
