"""The head's pooling and norm, frozen parts, and the parts' learning rates."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from train_support.tiny_world import TinyBackbone

from dml_losses import HeatedUpSoftmax
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
    # Allow for the rounding of powers and sums in float32.
    torch.testing.assert_close(pooled, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_layer_norm_has_no_parameters_and_forgets_scale_and_offset(features):
    head = EmbeddingHead(5, 2)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    moved = 7 * features + 3
    torch.testing.assert_close(
        head(moved), head(features), rtol=1e-3, atol=1e-3
    )  # eps isn't scaled by 7
    assert EmbeddingHead(5, 2, layer_norm=False).norm(features) is features


def test_a_head_can_omit_its_bias_or_its_linear_layer(features):
    without_bias = EmbeddingHead(5, 2, bias=False)
    assert [name for name, _ in without_bias.named_parameters()] == ["linear.weight"]
    pooled = EmbeddingHead(5, 5, layer_norm=False, linear=False)
    assert not list(pooled.parameters())
    torch.testing.assert_close(pooled(features), features.mean(dim=(2, 3)))
    with pytest.raises(ValueError, match="embedding_dim is 2 and linear is false; expected 5"):
        EmbeddingHead(5, 2, linear=False)
    assert EmbeddingHead(5, 2)(torch.rand(3, 5)).shape == (
        3,
        2,
    )  # features with no positions aren't pooled


def test_batch_norm_uses_batch_statistics_in_training_and_running_ones_in_evaluation():
    head = EmbeddingHead(5, 2, batch_norm=True)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    batches = [
        torch.rand(64, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(50)
    ]
    for batch in batches:
        embeddings = head(batch)
    torch.testing.assert_close(embeddings.mean(dim=0), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        embeddings.var(dim=0, correction=0), torch.ones(2), rtol=1e-3, atol=0
    )
    alone = head.eval()(torch.cat(batches))
    # An embedding doesn't depend on the rest of the batch.
    torch.testing.assert_close(head(batches[0][:1])[0], head(batches[0])[0])
    assert (alone.mean(dim=0).abs() < 0.1).all()  # the running mean covers about ten of 50 batches


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
    assert all(
        torch.equal(before[name], tensor) for name, tensor in model.backbone.state_dict().items()
    )
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
    optimizer = PartedOptimizer(
        table, {"backbone": model.backbone, "head": model.head, "loss": loss}
    )
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


def test_a_head_that_ends_in_batch_norm_trains_the_same_and_evaluates_as_the_paper_does():
    plain, normed = EmbeddingHead(8, 6), EmbeddingHead(8, 6, batch_norm=True)
    normed.load_state_dict(plain.state_dict(), strict=False)
    losses = [HeatedUpSoftmax(4, 6, feature_norm="batch") for _ in range(2)]
    losses[1].load_state_dict(losses[0].state_dict())
    for _ in range(5):
        features, labels = torch.randn(16, 8), torch.arange(16) % 4
        values = [
            loss(head(features), labels) for head, loss in zip((plain, normed), losses, strict=True)
        ]
        # Normalising twice equals normalising once, except for the 1e-5 that is added to each
        # variance.
        torch.testing.assert_close(values[1], values[0], rtol=1e-4, atol=1e-4)
    features = torch.randn(5, 8)
    wanted = losses[0].evaluation_embeddings(plain.eval()(features))
    got = torch.nn.functional.normalize(normed.eval()(features))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
