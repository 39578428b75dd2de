"""Frozen layers, rates by layer and LoRA: trained parameters, the state of the optimizer, and
resuming.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn
from train_support.run_traces import check_same_bits, stopped
from train_support.tiny_world import provide

from dml_core import InvalidOption, LayeredBackbone
from dml_train.networks.backbones import BNInception, SmallConv, TimmModel
from dml_train.networks.model import (
    EmbeddingHead,
    EmbeddingModel,
    freeze_early_layers,
    layer_scales,
    layers_of,
)
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import LrMultipliers, Optimizer
from dml_train.training.build import build
from dml_train.training.optimizers import PartedOptimizer
from dml_train.training.run import train

# Two blocks of convolution and batch norm; the images are 4 × 4.
BLOCKS = {"name": "small-conv", "widths": [8, 8]}


class Vit(TimmModel):
    """A small vision transformer for the tiny images."""

    def __init__(self, in_channels: int, lora_rank: int = 0, pretrained: bool = True) -> None:
        super().__init__(
            in_channels, "test_vit", image_size=32, lora_rank=lora_rank, pretrained=pretrained
        )

    def forward(self, images):
        return super().forward(nn.functional.interpolate(images, (32, 32)))


@pytest.fixture
def vit_registry(registry):
    pytest.importorskip("timm", reason="the extra dml-train[timm] isn't installed")
    provide(registry, "backbones", "vit", Vit)
    return registry


needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="the extra dml-train[lora] isn't installed"
)


def model_of(backbone, trained=None):
    if trained is not None:
        freeze_early_layers(backbone, trained)
    return EmbeddingModel(backbone, EmbeddingHead(backbone.num_features, 4))


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: SmallConv(1, [8, 16, 32], depth=2), 6),
        (lambda: BNInception(3), 11),
        (lambda: BNInception(3, levels=["inception_3c"]), 4),
    ],
    ids=["small-conv", "bn-inception", "up to 3c"],
)
def test_layers_hold_every_parameter_once_from_the_image_on(make, count):
    backbone = make()
    assert isinstance(backbone, LayeredBackbone)
    layers = layers_of(backbone, "a key")
    assert len(layers) == count
    listed = [id(parameter) for layer in layers for parameter in layer]
    assert listed == [
        id(parameter) for parameter in backbone.parameters()
    ]  # modules are made in order


def test_a_layers_rate_is_a_fixed_part_of_the_next_layers():
    backbone, head, loss = SmallConv(1, [8, 16, 32]), nn.Linear(32, 4), nn.Linear(4, 3, bias=False)
    table = Optimizer(lr=0.1, layer_decay=0.5, lr_multipliers=LrMultipliers(backbone=0.2))
    scales = layer_scales(layers_of(backbone, "a key"), table.layer_decay)
    optimizer = PartedOptimizer(
        table, {"backbone": backbone, "head": head, "loss": loss}, (), scales
    )
    rates = {id(p): group["lr"] for group in optimizer.torch.param_groups for p in group["params"]}
    for layer, expected in zip(backbone.parameters_by_layer(), (0.005, 0.01, 0.02), strict=True):
        assert [rates[id(p)] for p in layer] == pytest.approx([expected] * len(layer))
    assert {rates[id(p)] for p in (*head.parameters(), *loss.parameters())} == {0.1}
    optimizer.lr = 0.2
    optimizer.write_groups()
    assert optimizer.torch.param_groups[0]["lr"] == pytest.approx(0.01)


def test_frozen_layers_keep_weights_and_statistics_whatever_is_set():
    model = model_of(SmallConv(1, [8, 8, 8]), trained=1)
    model.batch_norm_trains, model.backbone_trains = 0, 0
    model.batch_norm_trains, model.backbone_trains = 1, 1
    model.train()
    first, last = model.backbone.layers[2], model.backbone.layers[-2]
    assert (first.training, last.training) == (False, True)
    model(torch.randn(4, 1, 16, 16)).square().sum().backward()
    layers = layers_of(model.backbone, "a key")
    assert [[p.grad is not None for p in layer] for layer in layers] == [
        [False] * 3,
        [False] * 3,
        [True] * 3,
    ]
    assert first.num_batches_tracked == 0
    assert last.num_batches_tracked == 1
    assert {id(p) for p in model.frozen_parameters()} == {
        id(p) for layer in layers[:2] for p in layer
    }


TABLES = {
    "last layer": {
        "backbone": BLOCKS,
        "training": {"trained_layers": 1},
        "optimizer": {"layer_decay": 0.5},
    },
    "frozen": {"training": {"trained_layers": 0, "micro_batch": 3, "ema_decay": 0.9}},
    "lora": {"backbone": {"name": "vit", "lora_rank": 2}, "training": {"steps": 4}},
}


@pytest.mark.parametrize("name", ["last layer", "frozen", pytest.param("lora", marks=needs_peft)])
def test_a_run_only_trains_the_rest_and_resumes(vit_registry, tiny_document, quiet, tmp_path, name):
    document = tiny_document(**TABLES[name], checkpoints={"every": 2})
    recipe = parse(document, vit_registry)
    start = build(recipe, vit_registry)
    before = {name: value.clone() for name, value in start.model.state_dict().items()}

    def run(where, resume=False):
        return train(recipe, tmp_path / where, resume=resume, registry=vit_registry, console=quiet)

    whole = run("whole")
    with stopped(vit_registry, 3):
        run("cut")
    one = check_same_bits(whole, run("cut", resume=True))

    # Frozen tensors must not change, and the optimizer should only have state for trained tensors.
    after = one.state().get("model", one.weights())
    frozen = {id(p) for p in start.model.frozen_parameters()}
    trained = [name for name, p in start.model.named_parameters() if id(p) not in frozen]
    assert frozen
    for parameter in start.model.state_dict().keys() - set(trained):
        last_norm = parameter.startswith("backbone.layers.5.")
        if parameter.startswith("backbone.") and not last_norm:
            assert torch.equal(after[parameter], before[parameter]), parameter
    assert all(not torch.equal(after[parameter], before[parameter]) for parameter in trained)
    assert (
        len(one.state()["optimizer"]["state"]) == len(trained) + 1
    )  # 1 for the loss's class weights


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"training": {"trained_layers": 1}}, "TinyBackbone doesn't list its layers"),
        (
            {"optimizer": {"layer_decay": 0.5}},
            "optimizer.layer_decay is given, and the backbone TinyBackbone",
        ),
        (
            {"backbone": BLOCKS, "training": {"trained_layers": 3}},
            "is 3; expected at most 2, the layers",
        ),
    ],
    ids=["no layers", "decay without layers", "too many"],
)
def test_what_a_backbone_cannot_do_and_a_run_without_training_are_refused(
    registry, tiny_document, tables, message
):
    with pytest.raises(InvalidOption, match=message):
        build(parse(tiny_document(**tables), registry), registry)
    backbone, rest = SmallConv(1, [8]), nn.Identity()
    parts = {"backbone": backbone, "head": rest, "loss": rest}
    with pytest.raises(InvalidOption, match="nothing trains: the backbone is frozen"):
        PartedOptimizer(Optimizer(), parts, list(backbone.parameters()))
