"""Recipes from learned features prepare images as the weights expect, and train the networks.

Networks are built on torch's device "meta", so that weights and arithmetic are not needed.
"""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch

from dml_core import registry
from dml_train.data.preparation import Preparation
from dml_train.networks.model import layers_of
from dml_train.recipe.bundled import PRETRAINED, bundled_recipes
from dml_train.recipe.loading import load_recipe

timm = pytest.importorskip("timm", reason="the extra dml-train[timm] isn't installed")
NAMES = [name for name in bundled_recipes() if name.startswith(f"{PRETRAINED}/")]
TOWERS = [name for name in NAMES if name.rpartition("/")[2] in ("clip", "dinov2", "dinov3", "siglip")]


def test_the_towers_are_among_the_recipes():
    assert len(TOWERS) == 4
    assert {*NAMES} - {*TOWERS} == {"pretrained/units", "pretrained/icons"}


@pytest.mark.parametrize("name", NAMES)
def test_images_are_prepared_as_the_weights_expect(name):
    recipe = load_recipe(name)
    options = {key: recipe.dataset[key] for key in ("resize", "crop", "square", "normalize", "interpolation")}
    said = Preparation(**options).describe()
    theirs = timm.get_pretrained_cfg(recipe.backbone["model"])
    for mean, deviation, scale, offset in zip(
        theirs.mean, theirs.std, said["scale"], said["offset"], strict=True
    ):
        assert scale == pytest.approx(1 / (255 * deviation))
        assert offset == pytest.approx(-mean / deviation)
    assert options["interpolation"] == theirs.interpolation
    if name in TOWERS:
        crop = recipe.backbone["image_size"] or theirs.input_size[-1]
        assert options["crop"] == crop
        assert options["resize"] == math.floor(crop / theirs.crop_pct)


needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="the extra dml-train[lora] isn't installed"
)
# Test LoRA only on a network per class of timm's models: SigLIP's and CLIP's towers have the same class as DINOv2's.
LORA = [pytest.param(name, 4, marks=needs_peft) for name in TOWERS if "dino" in name]


@pytest.mark.parametrize(("name", "rank"), [*((name, 0) for name in TOWERS), *LORA])
def test_every_tower_trains_as_a_whole_or_by_lora(name, rank):
    recipe = load_recipe(name, {"backbone.lora_rank": rank})
    table = {key: value for key, value in recipe.backbone.items() if key != "weights"} | {
        "image_size": 64 - 64 % 14
    }
    if "patch14" not in table["model"]:
        table["image_size"] = 64
    with torch.device("meta"):
        backbone = registry().build("backbones", table, {"in_channels": 3, "pretrained": True})
        features = backbone(torch.zeros(2, 3, table["image_size"], table["image_size"]))
        features.square().sum().backward()
    assert features.shape == (2, backbone.num_features)
    assert [n for n, p in backbone.named_parameters() if p.requires_grad and p.grad is None] == []
    assert len(layers_of(backbone, "a key")) >= 13  # patches, twelve blocks, and perhaps a pooling
