"""Triplet loss: a positive must be nearer to the anchor than a negative, by a margin.

Shapes: `B` batch (the anchors), `G` gallery, `D` dim, `R` anchors per block, `P` columns that can
contain positives, `N` anchors with a triplet, `K` of their positives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch.nn.functional import softplus

from dml_losses.arguments import check_choice
from dml_losses.functional.pair_operators import pair_operator
from dml_losses.functional.pairs import Average, Block
from dml_losses.functional.smooth_ranks import Pairs, sum_over_positives

Triplets = Literal["batch-hard", "batch-all", "semi-hard"]


def triplet(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    gallery: torch.Tensor | None = None,
    gallery_labels: torch.Tensor | None = None,
    *,
    triplets: Triplets = "batch-hard",
    margin: float | Literal["soft"] = 0.2,
) -> torch.Tensor:
    """Compute the loss of triplets if the positive isn't nearer to the anchor than the negative, by
    a margin.

    L = mean over triplets (a, i, j) of max(0, m + d_ai − d_aj), or of log(1 + exp(d_ai − d_aj)) if
    the margin is soft

    where d are distances on the unit sphere, i is a positive of the anchor a, and j a negative. The
    triplets are

    - "batch-hard": for each anchor, the farthest positive with the nearest negative;
    - "batch-all": all triplets with a loss above zero. This takes the time of (anchor, positive)
      pairs times rows;
    - "semi-hard": for each anchor and positive, the nearest negative that is farther than the
      positive.

    All three only use the memory of a block of distances.

    Source: Hermans et al. 2017, In Defense of the Triplet Loss for Person Re-Identification, L_BH
    and L_BA≠0; Schroff et al. 2015, FaceNet, for semi-hard negatives. Departures: embeddings are
    normalised, as in FaceNet but not in Hermans et al.; distances aren't squared, as in Hermans et
    al. but not in FaceNet; the mean over triplets instead of the sum; a semi-hard negative can be
    beyond the margin.

    Args:
        embeddings, labels, gallery, gallery_labels: see `dml_losses.functional`. All rows are
            anchors.
        triplets: which triplets to average; default "batch-hard".
        margin: m ≥ 0; default 0.2, as in both papers. Use "soft" for the soft margin; it never
            becomes zero, and since distances are at most 2, its slope is between 0.1 and 0.9.

    Returns:
        The loss, a scalar; zero, with a zero gradient, without triplets. A row at distance 0 from
        the anchor has no direction, and no gradient.

    Raises:
        ValueError: if `triplets` is unknown.
    """
    check_choice("triplets", triplets, get_args(Triplets))
    soft = margin == "soft"
    return _loss(
        embeddings, labels, gallery, gallery_labels, triplets, 0.0 if soft else margin, soft
    )


def _terms(block: Block, triplets: Triplets, margin: float, soft: bool) -> Average:
    distance_RG = (
        block.similarity.mul_(-2).add_(2).clamp_min_(0).sqrt_().clone()
    )  # ‖a − b‖² = 2 − 2·aᵀb
    weight_RG = torch.zeros_like(distance_RG)
    total, count = distance_RG.new_zeros(2).unbind()
    for rows_N, positive_NK, negative_NK, excess in _TRIPLETS[triplets](block):
        loss = softplus(excess) if soft else excess.add(margin).relu_()
        slope = excess.sigmoid() if soft else (loss > 0).to(loss.dtype)
        if negative_NK is None:
            weight_RG.index_add_(0, rows_N, sum_over_positives(slope))
            slope = slope.sum(dim=2)
            count += (loss > 0).sum()
        else:
            weight_RG.index_put_((rows_N[:, None], negative_NK), slope, accumulate=True)
            count += (excess > -torch.inf).sum()
        weight_RG.index_put_((rows_N[:, None], positive_NK), -slope, accumulate=True)
        total += loss.sum()
    # Multiply by ∂d/∂(aᵀb) = −1/d. Distances below √eps are rounding errors of the product, so
    # bound the divisor.
    smallest = torch.finfo(distance_RG.dtype).eps ** 0.5
    torch.div(weight_RG, distance_RG.clamp_min_(smallest), out=block.similarity)
    return Average(total, count)


# Triplets: the rows of the anchors, (N,), K positives of each, and a negative for each of these,
# or None to try all columns as negatives; d_ai − d_aj, (N, K) or (N, K, G), −∞ without a triplet.
_Some = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]


def _hardest(block: Block) -> Iterator[_Some]:
    farthest_R1, positive_R1 = (
        block.similarity[:, block.columns]
        .masked_fill(~block.positive, -torch.inf)
        .max(dim=1, keepdim=True)
    )
    block.similarity[:, block.columns].masked_fill_(block.same, torch.inf)
    nearest_R1, negative_R1 = block.similarity.min(dim=1, keepdim=True)
    rows_R = torch.arange(len(farthest_R1), device=farthest_R1.device)
    yield rows_R, block.columns.start + positive_R1, negative_R1, farthest_R1 - nearest_R1


def _all(block: Block) -> Iterator[_Some]:
    block.similarity.neg_()  # so that nearer rows rank higher
    for _, rows_N, place_NK, _, excess_NKG in Pairs.of(block).differences():
        yield rows_N, block.columns.start + place_NK, None, excess_NKG


def _semi_hard(block: Block) -> Iterator[_Some]:
    for rows_N, positive_NK, _, excess_NKG in _all(block):
        nearest_NK, negative_NK = excess_NKG.masked_fill_(excess_NKG >= 0, -torch.inf).max(dim=2)
        yield rows_N, positive_NK, negative_NK, nearest_NK


_TRIPLETS = {"batch-hard": _hardest, "batch-all": _all, "semi-hard": _semi_hard}

_loss = pair_operator("triplet", "str triplets, float margin, bool soft", _terms)
