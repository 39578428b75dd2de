"""Sparse gradients of the loss's parameters: updates of single rows, clipping, errors."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from torch import nn
from train_support.tiny_world import TinySparseLoss

from dml_core import DmlError
from dml_train.ranks.sharding import gradient_norm
from dml_train.recipe.tables import LrMultipliers, Optimizer
from dml_train.training import checkpoint
from dml_train.training.optimizers import PartedOptimizer

SPARSE = {"name": "tiny-sparse"}


def take_three_steps(table: Optimizer, loss: TinySparseLoss, factor: float = 1.0) -> torch.Tensor:
    """Return the class weights after three steps on classes 0 and 2 of four."""
    torch.manual_seed(0)
    backbone, head = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = PartedOptimizer(table, {"backbone": backbone, "head": head, "loss": loss})
    optimizer.lr_multipliers.loss = factor
    for _ in range(3):
        loss(head(backbone(torch.randn(4, 3))), torch.tensor([0, 2, 2, 0])).backward()
        optimizer.check_gradients()
        optimizer.write_groups()
        optimizer.torch.step()
        optimizer.torch.zero_grad()
    return loss.class_weights.detach()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_only_rows_with_a_gradient_change_by_the_losss_rate_and_weight_decay_changes_none(
    name: str,
) -> None:
    loss = TinySparseLoss(4, 3)
    before = loss.class_weights.detach().clone()
    table = Optimizer(name=name, lr=0.1, weight_decay=0.5, lr_multipliers=LrMultipliers(loss=0.0))
    assert torch.equal(take_three_steps(table, loss, factor=0.0), before)
    moved = (take_three_steps(table, loss) != before).any(dim=1)
    assert moved.tolist() == [True, False, True, False]


def test_without_decay_rows_of_every_batch_change_as_with_adam() -> None:
    """When all batches contain all classes, SparseAdam is Adam, since it updates the moments of all
    rows.
    """

    class Dense(TinySparseLoss):
        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            scores = (
                nn.functional.normalize(embeddings) @ nn.functional.normalize(self.class_weights).T
            )
            return nn.functional.cross_entropy(self.scale * scores, labels)

    start = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    results = []
    for kind, declares in ((TinySparseLoss, True), (Dense, False)):
        torch.manual_seed(0)
        loss = kind(3, 3, declares=declares)
        loss.class_weights.data.copy_(start)
        network = nn.Linear(3, 3)
        optimizer = PartedOptimizer(
            Optimizer(lr=0.1, weight_decay=0.0),
            {"backbone": network, "head": nn.Identity(), "loss": loss},
        )
        for _ in range(4):
            loss(network(torch.randn(6, 3)), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
            optimizer.write_groups()
            optimizer.torch.step()
            optimizer.torch.zero_grad()
        results.append(loss.class_weights.detach())
    # SparseAdam computes in a different order, in float32.
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_an_undeclared_sparse_gradient_is_refused(run) -> None:
    with pytest.raises(
        DmlError, match=r"parameter \(6, 8\) of the loss is sparse, but the loss omits it"
    ):
        run(loss={**SPARSE, "declares": False})


def test_a_dense_gradient_that_the_loss_declares_sparse_is_refused() -> None:
    loss = TinySparseLoss(4, 3)
    optimizer = PartedOptimizer(
        Optimizer(), {"backbone": nn.Linear(3, 3), "head": nn.Identity(), "loss": loss}
    )
    loss.class_weights.sum().backward()
    with pytest.raises(
        DmlError, match=r"parameter \(4, 3\) of the loss is dense, but the loss lists it"
    ):
        optimizer.check_gradients()


def test_the_gradient_norm_sums_repeated_rows_first() -> None:
    weights, bias = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(3))
    rows = nn.functional.embedding(torch.tensor([1, 3, 1]), weights, sparse=True)
    (rows.square().sum() + bias.square().sum()).backward()
    dense = [parameter.grad.to_dense() for parameter in (weights, bias)]
    expected = torch.cat([gradient.flatten() for gradient in dense]).norm()
    torch.testing.assert_close(gradient_norm([weights, bias]), expected)


def test_clipping_scales_sparse_gradients_with_the_others(run, tmp_path) -> None:
    """An SGD step with a clipped gradient equals a step with the learning rate times limit /
    norm.
    """
    limit, once = (
        1e-4,
        {"training": {"steps": 1}, "checkpoints": {"every": 1}, "logging": {"every": 1}},
    )
    sgd = {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    sparse = functools.partial(run, loss=SPARSE)
    clipped = sparse(
        tmp_path / "clipped",
        **{**once, "training": {"steps": 1, "gradient_clip": limit}},
        optimizer={**sgd, "lr": 1.0},
    )
    norm = json.loads(clipped.metrics.read_text().splitlines()[0])["gradient_norm"]
    assert norm > 100 * limit
    slow = sparse(tmp_path / "slow", **once, optimizer={**sgd, "lr": limit / norm})
    one, other = (
        checkpoint.newest_intact(f.checkpoints).state()["loss"]["class_weights"]
        for f in (clipped, slow)
    )
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)  # float32
