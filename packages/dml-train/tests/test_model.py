"""The head's pooling and norm, frozen parts, and each part's learning rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from train_support.tiny_world import TinyBackbone

from dml_train.networks.model import EmbeddingHead, EmbeddingModel
from dml_train.recipe.tables import LrMultipliers, Optimizer
from dml_train.training.optimizers import PartedOptimizer


@pytest.fixture
def features():
    return torch.rand(3, 5, 4, 2, generator=torch.Generator().manual_seed(0)) + 0.1


@pytest.mark.parametrize(
    ("pooling", "one"),
    [
        ("average", lambda x: sum(x) / len(x)),
        ("max", max),
        ("both", lambda x: sum(x) / len(x) + max(x)),
        ("gem", lambda x: (sum(v**3 for v in x) / len(x)) ** (1 / 3)),
    ],
)
def test_pooling_is_its_definition_position_by_position(features, pooling, one):
    pooled = EmbeddingHead(5, 2, pooling).pool(features)
    expected = [[one(channel.flatten().tolist()) for channel in image] for image in features]
    torch.testing.assert_close(
        pooled, torch.tensor(expected), rtol=1e-5, atol=1e-6
    )  # float32 powers and sums


def test_layer_norm_has_no_parameters_and_forgets_scale_and_offset(features):
    head = EmbeddingHead(5, 2)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    moved = 7 * features + 3
    torch.testing.assert_close(head(moved), head(features), rtol=1e-3, atol=1e-3)  # eps of the norm
    assert EmbeddingHead(5, 2, layer_norm=False).norm(features) is features


def test_a_head_can_omit_its_bias_or_its_linear_layer(features):
    without_bias = EmbeddingHead(5, 2, bias=False)
    assert [name for name, _ in without_bias.named_parameters()] == ["linear.weight"]
    pooled = EmbeddingHead(5, 5, layer_norm=False, linear=False)
    assert not list(pooled.parameters())
    torch.testing.assert_close(pooled(features), features.mean(dim=(2, 3)))
    with pytest.raises(ValueError, match="embedding_dim is 2 without a linear layer; expected 5"):
        EmbeddingHead(5, 2, linear=False)


def test_batch_norm_uses_batch_statistics_in_training_and_running_ones_in_evaluation():
    head = EmbeddingHead(5, 2, batch_norm=True)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    batches = [torch.rand(64, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(50)]
    for batch in batches:
        embeddings = head(batch)
    torch.testing.assert_close(embeddings.mean(dim=0), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(embeddings.var(dim=0, correction=0), torch.ones(2), rtol=1e-3, atol=0)
    alone = head.eval()(torch.cat(batches))
    torch.testing.assert_close(
        head(batches[0][:1])[0], head(batches[0])[0]
    )  # independent of the rest of the batch
    assert (alone.mean(dim=0).abs() < 0.1).all()  # the mean of 50 batches against a running one of about ten


def test_features_without_positions_are_not_pooled():
    assert EmbeddingHead(5, 2)(torch.rand(3, 5)).shape == (3, 2)


@pytest.fixture
def model():
    return EmbeddingModel(TinyBackbone(1), EmbeddingHead(8, 2)).train()


def batch_norm(model):
    return model.backbone.layers[1]


def step(model):
    model(torch.rand(4, 1, 4, 4)).sum().backward()


def test_a_frozen_backbone_keeps_weights_and_statistics_while_the_head_learns(model):
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    model.backbone_trains = 0
    step(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.backbone.state_dict().items())
    assert all(p.grad is None for p in model.backbone.parameters())
    assert model.head.linear.weight.grad is not None
    model.backbone_trains = 1
    step(model)
    assert all(p.grad is not None for p in model.backbone.parameters())
    assert not torch.equal(batch_norm(model).running_mean, before["layers.1.running_mean"])


def test_frozen_batch_norm_stays_frozen_through_evaluation_and_unfreezing_of_the_backbone(model):
    model.batch_norm_trains = 0
    model.eval()
    model.train()
    model.backbone_trains = 0
    model.backbone_trains = 1
    step(model)
    assert batch_norm(model).running_mean.abs().sum() == 0
    assert batch_norm(model).weight.grad is None
    assert model.backbone.layers[0].weight.grad is not None


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_each_part_has_its_learning_rate_and_only_matrices_decay(model, name):
    loss = nn.Linear(2, 3, bias=False)
    factors = LrMultipliers(backbone=0.1, head=1.0, loss=10.0)
    table = Optimizer(name=name, lr=0.1, weight_decay=0.5, lr_multipliers=factors)
    optimizer = PartedOptimizer(table, {"backbone": model.backbone, "head": model.head, "loss": loss})
    optimizer.lr, optimizer.lr_multipliers.loss = 0.2, 5.0
    optimizer.write_groups()
    found = {id(p): group for group in optimizer.torch.param_groups for p in group["params"]}
    modules = {"backbone": (model.backbone, 0.02), "head": (model.head, 0.2), "loss": (loss, 1.0)}
    for module, lr in modules.values():
        for parameter in module.parameters():
            group = found.pop(id(parameter))
            assert group["lr"] == pytest.approx(lr)
            assert group["weight_decay"] == (0.5 if parameter.ndim >= 2 else 0.0)
    assert found == {}
