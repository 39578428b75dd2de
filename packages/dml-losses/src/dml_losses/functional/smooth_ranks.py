"""Compute losses of smooth ranks, where a sum of smooth steps counts how many rows are above a
positive.

The rank of positive i among a query's rows is 1 + A + B, where A = Σ h⁺(s_j − s_i) over the query's
other positives, and B = Σ h⁻(s_j − s_i) over its negatives. All positives are compared with all
rows, but only one positive per query at a time, so that no tensor is larger than the block of
similarities. Steps are computed twice, for the ranks and for the gradient, because the gradient
needs the sum first.

Shapes: `R` queries per block, `G` gallery, `P` columns that can contain positives, `I` positives
per query, at most, `N` queries that have an i-th positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dml_losses.functional.pairs import Block


class Step(NamedTuple):
    """A smooth step h(d) of differences d between similarities; h and its slope must be 0 at −∞.

    Args:
        value: maps differences, of any shape, to h.
        slope: maps differences to dh/dd; None if the gradient should treat h as a constant.
    """

    value: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor], torch.Tensor] | None


class RankLoss(NamedTuple):
    """The losses of queries, as a function of A and B for their positives.

    Args:
        losses: (R,).
        positives_slope, negatives_slope: (R, I), ∂(Σ losses)/∂A and ∂(Σ losses)/∂B.
    """

    losses: torch.Tensor
    positives_slope: torch.Tensor
    negatives_slope: torch.Tensor


def sigmoid_step(temperature: float) -> Step:
    """Make the step h(d) = σ(d/τ)."""

    def slope(difference: torch.Tensor) -> torch.Tensor:
        share = difference.div(temperature).sigmoid_()
        return share.mul_(1 - share).div_(temperature)

    return Step(lambda difference: difference.div(temperature).sigmoid_(), slope)


def rank_terms(
    block: Block,
    positive_step: Step,
    negative_step: Step,
    loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], RankLoss],
) -> torch.Tensor:
    """Compute a block's share of the mean over queries for a loss of smooth ranks, as terms of a
    `pair_operator`.

    Args:
        block: the block; its similarities are overwritten with the gradient.
        positive_step, negative_step: h⁺ and h⁻.
        loss: called with A, B and a mask, all (R, I); the mask is false if a query has fewer
            positives.

    Returns:
        The sum of the losses in this block divided by the number of all queries with a positive, a
        scalar.
    """
    pairs = Pairs.of(block)
    above_RI, below_RI = torch.zeros_like(pairs.target), torch.zeros_like(pairs.target)
    for i, rows, positives_NP, negatives_NG in pairs.differences():
        above_RI[rows, i] = positive_step.value(positives_NP).sum(dim=1)
        below_RI[rows, i] = negative_step.value(negatives_NG).sum(dim=1)
    share = 1 / block.num_matched.clamp_min(1)
    result = loss(above_RI, below_RI, pairs.present)

    gradient_RG = torch.zeros_like(block.similarity)
    for i, rows, positives_NP, negatives_NG in pairs.differences():
        own_N = gradient_RG.new_zeros(len(rows))
        for step, slope_RI, difference, columns in (
            (positive_step, result.positives_slope, positives_NP, block.columns),
            (negative_step, result.negatives_slope, negatives_NG, slice(None)),
        ):
            if step.slope is not None:
                weight = step.slope(difference).mul_((slope_RI[rows, i] * share)[:, None])
                gradient_RG[:, columns].index_add_(0, rows, weight)
                own_N -= weight.sum(dim=1)
        gradient_RG[rows, block.columns.start + pairs.place[rows, i]] += own_N
    block.similarity.copy_(gradient_RG)
    return result.losses.sum() * share


@dataclass(frozen=True, slots=True)
class Pairs:
    """The similarities of a block's positives and, separately, of its negatives; −∞ for all other
    pairs.
    """

    positives: torch.Tensor  # (R, P)
    negatives: torch.Tensor  # (R, G)
    place: torch.Tensor  # (R, I) int64: the column of the i-th positive, in P
    target: torch.Tensor  # (R, I): its similarity
    present: torch.Tensor  # (R, I) bool

    @classmethod
    def of(cls, block: Block) -> Pairs:
        """Separate the positives of a block from the negatives, in place."""
        positives_RP = block.similarity[:, block.columns].masked_fill(~block.positive, -torch.inf)
        block.similarity[:, block.columns].masked_fill_(block.same, -torch.inf)
        most = int(block.num_positives.max())
        place_RI = block.positive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[
            :, :most
        ]
        present_RI = torch.arange(most, device=place_RI.device) < block.num_positives[:, None]
        return cls(
            positives_RP, block.similarity, place_RI, positives_RP.gather(1, place_RI), present_RI
        )

    def differences(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield i, the queries with an i-th positive, and how far positives (N, P) and negatives
        (N, G) exceed it.
        """
        for i in range(self.target.shape[1]):
            rows = self.present[:, i].nonzero().squeeze(1)
            target_N1 = self.target[rows, i, None]
            positives_NP = self.positives[rows].sub_(target_N1)
            positives_NP.scatter_(1, self.place[rows, i, None], -torch.inf)  # not above itself
            yield i, rows, positives_NP, self.negatives[rows].sub_(target_N1)
