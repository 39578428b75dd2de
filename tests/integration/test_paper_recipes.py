"""The papers' recipes: each has the settings that its paper states, and its loss trains."""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatch
from typing import Any

import pytest
import torch

from dml_core import DmlError, registry
from dml_train.data import OFFICIAL
from dml_train.recipe.bundled import bundled_recipes, bundled_text, leading_comment
from dml_train.recipe.extending import read_chain
from dml_train.recipe.loading import load_recipe
from dml_train.training.build import build_model

SYSTEMS = ("ice", "rll", "norm-softmax", "heated-up", "memvir")
RECIPES = [
    name for name in bundled_recipes() if name.split("/")[0] in SYSTEMS and not name.endswith("/glyphs")
]
LARGE_RLL = ("rll/sop", "rll/lmh-sop", "rll/resnet50-sop", "rll/ablation-sop")

# Recipes by pattern (a later one overrides), the settings that the paper states for them, and its section.
STATED: list[tuple[str, dict[str, Any]]] = [
    ("ice/*", {"optimizer.lr": 1e-3, "optimizer.momentum": 0.8, "optimizer.weight_decay": 1e-5}),  # section 4.1
    ("ice/*", {"optimizer.lr_multipliers.head": 10.0, "dataset.crop": 227, "embedding.dim": 512}),
    ("ice/*", {"training.steps": 4000, "sampler.classes_per_batch": 6, "sampler.images_per_class": 10}),
    ("ice/*sop", {"training.steps": 20000, "sampler.classes_per_batch": 90, "sampler.images_per_class": 2}),
    ("rll/*", {"optimizer.momentum": 0.9, "optimizer.weight_decay": 2e-5}),  # section 4.1.6
    ("rll/*", {"optimizer.lr_multipliers.head": 10.0}),
    ("rll/*", {"sampler.images_per_class": 3, "loss.positive_temperature": 0.0, "dataset.crop": 224}),
    *((name, {"sampler.classes_per_batch": 60, "optimizer.lr": 1e-2}) for name in LARGE_RLL),
    ("rll/*cub", {"training.freeze_batch_norm": True}),  # 4.1.3
    ("rll/*cars196", {"training.freeze_batch_norm": True}),
    ("norm-softmax/*", {"loss.temperature": 0.05, "embedding.layer_norm": True}),  # section 6
    ("norm-softmax/*", {"optimizer.momentum": 0.9, "optimizer.weight_decay": 1e-4, "training.epochs": 31.0}),
    ("heated-up/*", {"loss.alpha": 16.0, "embedding.dim": 64, "sampler.batch_size": 32}),  # section 4.1
    ("heated-up/*", {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.004}),
    ("heated-up/*sop", {"optimizer.name": "adamw", "optimizer.lr": 0.01}),
    ("memvir/*", {"embedding.dim": 512, "sampler.batch_size": 128, "optimizer.lr": 1e-4}),  # section 4.1
    ("memvir/resnet50-*", {"sampler.batch_size": 512, "optimizer.lr": 5e-3, "optimizer.name": "sgd"}),  # 4.5
]  # fmt: skip


def look_up(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value[key]
    return value


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_settings_that_its_paper_states(name):
    document = load_recipe(name, [], registry()).to_dict()
    stated: dict[str, Any] = {}
    for pattern, settings in STATED:
        if fnmatch(name, pattern):
            stated |= settings
    assert stated
    assert {path: look_up(document, path) for path in stated} == stated


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_or_its_parent_lists_published_stated_and_chosen_values(name):
    comments = [leading_comment(source.text).replace("\n# ", " ") for source in read_chain(name)]
    for words in ("Published", "Recall@1"):
        assert words in comments[0]
    for words in ("Paper: ", "From the paper", "chosen"):
        assert any(words in comment for comment in comments)
    assert load_recipe(name, [], registry()).dataset["name"] in OFFICIAL


@pytest.mark.parametrize("name", bundled_recipes())
def test_settings_in_a_recipes_comment_are_valid(name):
    comment = re.sub(r"\n# ?", " ", leading_comment(bundled_text(name)))
    said = [shlex.split(words)[0] for words in re.findall(r"--set ('[^']+'|[^\s,;)]+)", comment)]
    load_recipe(name, [assignment for assignment in said if "=" in assignment], registry())


def test_every_data_set_of_every_papers_main_table_has_its_recipes():
    three, four = ("cub", "cars196", "sop"), ("cub", "cars196", "sop", "in-shop")
    losses = ("softmax", "norm-softmax", "cos-face", "arc-face", "proxy-nca", "proxy-anchor")
    systems = ("rll/", "rll/lmh-", "norm-softmax/", "norm-softmax/2048-", "norm-softmax/bn-inception-")
    expected = {f"{system}{data}" for system in ("ice/", "ice/lmh-") for data in three}
    expected |= {f"{system}{data}" for system in (*systems, "heated-up/", "heated-up/bn-") for data in four}
    expected |= {f"memvir/{loss}-{data}" for loss in losses for data in three}
    assert expected <= set(RECIPES)


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("memvir/")])
def test_the_memory_starts_after_fifty_epochs(name):
    recipe = load_recipe(name, [], registry())
    images = OFFICIAL[recipe.dataset["name"]].published["train"].images
    assert recipe.loss["warmup_steps"] == 50 * (images // recipe.sampler["batch_size"])


@pytest.mark.parametrize("name", [name for name in RECIPES if re.search(r"[/-]cub$|^memvir/resnet50", name)])
def test_the_loss_of_a_recipe_trains(name):
    table = {**load_recipe(name, [], registry()).loss}
    if "num_steps" in table:
        table |= {"num_steps": 1, "margin": 0, "warmup_steps": 0}  # so that the memory contributes at once
    loss = registry().build("losses", table, {"num_classes": 5, "embedding_dim": 16, "seed": 0})
    random = torch.Generator().manual_seed(0)
    for _ in range(3):
        rows = torch.randn(10, 16, generator=random, requires_grad=True)
        loss(rows, torch.arange(10) % 5).backward()
        assert rows.grad is not None
        assert torch.isfinite(rows.grad).all()
        assert rows.grad.abs().sum() > 0


def test_three_levels_make_one_embedding_and_missing_weights_are_reported_with_the_page():
    document = load_recipe("rll/lmh-cub", [], registry())
    with pytest.raises(
        DmlError, match=r"bn_inception-52deb4733\.pth', and there is no such file.*docs/guide/models\.md"
    ):
        build_model(document, 3, registry(), torch.device("cpu"))
    random = document.model_copy(
        update={"backbone": {k: v for k, v in document.backbone.items() if k != "weights"}}
    )
    model = build_model(random, 3, registry(), torch.device("cpu")).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 3 * 512)
