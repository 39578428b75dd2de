"""Compute losses of smooth ranks, where a sum of smooth steps counts how many rows are above a
positive.

The rank of positive i among a query's rows is 1 + A + B, where A = Σ h⁺(s_j − s_i) over the query's
other positives, and B = Σ h⁻(s_j − s_i) over its negatives. All positives are compared with all
rows, but only a few positives per query at a time (one on a CPU), so that no tensor is larger than
the block of similarities. Steps are computed twice, for the ranks and for the gradient, because the
gradient needs the sum first.

Shapes: `R` queries per block, `G` gallery, `P` columns that can contain positives, `I` positives
per query, at most, `K` positives compared at a time, `N` queries that have the first of the K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dml_losses.functional.pairs import BLOCK_ELEMENTS, Block

# The largest number of differences at a time, if a block isn't larger. A CPU's caches hold one
# positive per query; on an accelerator, to start many small kernels takes longer than to run them.
_ELEMENTS_AT_ONCE = {"cpu": 0}


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
    for some, rows_N, _, positives_NKP, negatives_NKG in pairs.differences():
        above_RI[:, some].index_copy_(0, rows_N, positive_step.value(positives_NKP).sum(dim=2))
        below_RI[:, some].index_copy_(0, rows_N, negative_step.value(negatives_NKG).sum(dim=2))
    share = 1 / block.num_matched.clamp_min(1)
    result = loss(above_RI, below_RI, pairs.present)

    gradient_RG = torch.zeros_like(block.similarity)
    for some, rows_N, place_NK, positives_NKP, negatives_NKG in pairs.differences():
        own_NK = gradient_RG.new_zeros(place_NK.shape)
        for step, slope_RI, difference, columns in (
            (positive_step, result.positives_slope, positives_NKP, block.columns),
            (negative_step, result.negatives_slope, negatives_NKG, slice(None)),
        ):
            if step.slope is not None:
                slope_NK = slope_RI[:, some].index_select(0, rows_N).mul_(share)
                weight = step.slope(difference).mul_(slope_NK.unsqueeze(2))
                gradient_RG[:, columns].index_add_(0, rows_N, sum_over_positives(weight))
                own_NK -= weight.sum(dim=2)
        gradient_RG[rows_N[:, None], block.columns.start + place_NK] += own_NK
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
    target: torch.Tensor  # (R, I): its similarity; ∞ if the query has fewer positives
    present: torch.Tensor  # (R, I) bool

    @classmethod
    def of(cls, block: Block) -> Pairs:
        """Separate the positives of a block from the negatives, in place."""
        positives_RP = block.similarity[:, block.columns].masked_fill(~block.positive, -torch.inf)
        block.similarity[:, block.columns].masked_fill_(block.same, -torch.inf)
        # A CUDA graph has the same operations for all labels, so all columns can be positives.
        captured = _is_captured(positives_RP)
        most = positives_RP.shape[1] if captured else int(block.num_positives.max())
        order_RP = block.positive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        place_RI = order_RP[:, :most]
        present_RI = block.positive.gather(1, place_RI)
        target_RI = positives_RP.gather(1, place_RI).masked_fill_(~present_RI, torch.inf)
        return cls(positives_RP, block.similarity, place_RI, target_RI, present_RI)

    def differences(
        self,
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield which positives, the queries that have the first of them, (N,), their columns,
        (N, K), and how far positives (N, K, P) and negatives (N, K, G) exceed them; −∞ if a query
        has fewer positives.
        """
        elements = _ELEMENTS_AT_ONCE.get(self.target.device.type, BLOCK_ELEMENTS)
        step = max(1, elements // self.negatives.numel())
        for start in range(0, self.target.shape[1], step):
            some = slice(start, start + step)
            rows_N = (
                torch.arange(len(self.target), device=self.target.device)
                if _is_captured(self.target)
                else self.present[:, start].nonzero().squeeze(1)
            )
            place_NK, target_NK = (
                each[:, some].index_select(0, rows_N) for each in (self.place, self.target)
            )
            repeated = rows_N[:, None].expand(place_NK.shape).reshape(-1)
            positives_NKP, negatives_NKG = (
                each.index_select(0, repeated).view(*place_NK.shape, -1).sub_(target_NK[:, :, None])
                for each in (self.positives, self.negatives)
            )
            positives_NKP.scatter_(2, place_NK[:, :, None], -torch.inf)  # not above itself
            yield some, rows_N, place_NK, positives_NKP, negatives_NKG


def sum_over_positives(numbers: torch.Tensor) -> torch.Tensor:
    """Sum (N, K, G) over the K positives."""
    # PyTorch takes several times as long for the sum of one number as for a copy.
    return numbers.sum(dim=1) if numbers.shape[1] > 1 else numbers[:, 0]


def _is_captured(like: torch.Tensor) -> bool:
    """Return whether operations on this tensor's device are captured in a CUDA graph."""
    return like.is_cuda and torch.cuda.is_current_stream_capturing()
