"""Triplet, contrastive, multi-similarity and InfoNCE agree with pytorch-metric-learning where the
definitions do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from losses_support import rows
from torch.autograd import grad

pytest.importorskip("pytorch_metric_learning", reason="the extra dml-losses[pml] is not installed")

from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.reducers import MeanReducer

from dml_losses import functional as F


class HalfSquares(MeanReducer):
    """The mean of half the squares of losses above zero: the library's contrastive loss doesn't
    square.
    """

    def element_reduction_helper(self, losses: torch.Tensor, *_: Any) -> torch.Tensor:
        return (losses[losses > 0].square() / 2).mean() if (losses > 0).any() else losses.sum()

    def pos_pair_reduction(self, losses: torch.Tensor, *_: Any) -> torch.Tensor:
        return self.element_reduction_helper(losses)

    neg_pair_reduction = pos_pair_reduction


def contrastive_per_query(x: torch.Tensor, y: torch.Tensor, *gallery: torch.Tensor) -> torch.Tensor:
    """Average the library's loss over queries: the library averages over the batch's pairs, ours
    over a query's.
    """
    loss = losses.ContrastiveLoss(neg_margin=1.3, reducer=HalfSquares())
    values = []
    for q in range(len(x)):
        others = gallery or tuple(torch.cat((part[:q], part[q + 1 :])) for part in (x, y))
        values.append(loss(x[q : q + 1], y[q : q + 1], ref_emb=others[0], ref_labels=others[1]))
    return torch.stack(values).mean()


def mined(
    loss: Callable[..., torch.Tensor], miner: Callable[..., Any]
) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, y: torch.Tensor, *gallery: torch.Tensor) -> torch.Tensor:
        return loss(x, y, miner(x, y, *gallery), *gallery)

    return call


def unmined(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, y, *gallery: loss(x, y, None, *gallery)


def soft(**options: Any) -> losses.TripletMarginLoss:
    return losses.TripletMarginLoss(margin=0, smooth_loss=True, **options)


SOFT = {"margin": "soft"}
CASES: dict[str,
    tuple[Callable[..., torch.Tensor], dict[str, Any], Callable[..., torch.Tensor]]] = {
    "batch hard": (
        F.triplet, {"margin": 0.2},
        mined(losses.TripletMarginLoss(margin=0.2, reducer=MeanReducer()), miners.BatchHardMiner()),
    ),
    "batch hard, soft": (F.triplet, SOFT,
        mined(soft(reducer=MeanReducer()), miners.BatchHardMiner())),
    "batch all": (F.triplet, {"triplets": "batch-all"},
        unmined(losses.TripletMarginLoss(margin=0.2))),
    "batch all, soft": (F.triplet, {"triplets": "batch-all", **SOFT}, unmined(soft())),
    # The library's miner takes one positive for each anchor, so classes of two are compared.
    "semi-hard": (
        F.triplet, {"triplets": "semi-hard"},
        mined(
            losses.TripletMarginLoss(margin=0.2, reducer=MeanReducer()),
            miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard"),
        ),
    ),
    "contrastive": (F.contrastive, {"margin": 1.3}, contrastive_per_query),
    "multi-similarity": (
        F.multi_similarity, {},
        mined(losses.MultiSimilarityLoss(2, 50, 0.5), miners.MultiSimilarityMiner(0.1)),
    ),
    # The library compares a positive only with its anchor's negatives, so classes of two are
    # compared.
    "info-nce": (
        F.info_nce,
        {"log_scale": torch.tensor(math.log(10.0), dtype=torch.float64), "symmetric": False},
        unmined(losses.NTXentLoss(temperature=0.1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_the_librarys(name: str, seed: int) -> None:
    ours, options, theirs = CASES[name]
    size = 2 if name in ("semi-hard", "info-nce") else 4
    x, y = rows(24, seed, dim=5).requires_grad_(), torch.arange(24) // size
    value, expected = ours(x, y, **options), theirs(x, y)
    assert value > 0
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad(value, x), grad(expected, x), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("semi-hard", "info-nce")])
def test_a_gallery_is_compared_as_the_library_does(name: str) -> None:
    ours, options, theirs = CASES[name]
    x, y, g, z = rows(12, 3, dim=5), torch.arange(12) % 4, rows(20, 4, dim=5), torch.arange(20) % 5
    torch.testing.assert_close(ours(x, y, g, z, **options), theirs(x, y, g, z), rtol=1e-6, atol=0)


def test_both_sides_of_info_nce_are_the_means_of_the_librarys() -> None:
    # The library excludes the diagonal if both tensors of labels are the same object.
    x, g, y, z = rows(9, 5), rows(9, 6), torch.arange(9), torch.arange(9)
    _, options, theirs = CASES["info-nce"]
    expected = (theirs(x, y, g, z) + theirs(g, z, x, y)) / 2
    torch.testing.assert_close(
        F.info_nce(x, y, g, z, **options | {"symmetric": True}), expected, rtol=1e-6, atol=0
    )
