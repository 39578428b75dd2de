"""A part whose rate is 0 keeps its weights, whatever the optimizer: how recipes train new parameters only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dml_train.recipe.tables import Optimizer
from dml_train.training.optimizers import PartedOptimizer

OPTIMIZERS = [
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.9, "nesterov": True},
    {"name": "adamw"},
    {"name": "adam"},
]


@pytest.mark.parametrize("table", OPTIMIZERS, ids=lambda table: "-".join(map(str, table.values())))
def test_a_rate_of_zero_leaves_a_part_untouched_and_its_successor_moves_it(table):
    torch.manual_seed(0)
    parts = {name: nn.Linear(4, 3) for name in ("backbone", "head", "loss")}
    optimizer = PartedOptimizer(Optimizer(lr=0.1, weight_decay=0.1, **table), parts)
    before = {name: part.weight.detach().clone() for name, part in parts.items()}

    def step(backbone: float) -> None:
        optimizer.lr_multipliers.backbone = backbone
        optimizer.write_groups()
        sum(part(torch.ones(2, 4)).pow(2).sum() for part in parts.values()).backward()
        optimizer.torch.step()
        optimizer.torch.zero_grad(set_to_none=True)

    for _ in range(3):
        step(0.0)
    assert torch.equal(parts["backbone"].weight, before["backbone"])
    assert not torch.equal(parts["head"].weight, before["head"])
    step(1.0)
    assert not torch.equal(parts["backbone"].weight, before["backbone"])
