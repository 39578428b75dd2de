"""Recipes of the documentation and of the package are valid with everything installed."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dml_core import registry
from dml_train.recipe.bundled import bundled_recipes
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe
from dml_train.training import checkpoint
from dml_train.training.run import train

README = Path(__file__).parents[2] / "packages/dml-train/README.md"


def test_the_recipe_of_the_readme_is_valid():
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    recipe = parse(tomllib.loads(text), registry())
    assert recipe.schedule["model.backbone_trains"]["values"] == [0, 1]


@pytest.mark.parametrize("name", bundled_recipes())
def test_every_bundled_recipe_is_valid(name):
    assert load_recipe(name, [], registry()).training.seed == 0


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_run_with_a_fraction_of_the_classes_resumes_to_the_same_bits(tmp_path, optimizer):
    """The gradient of the class weights is sparse: clipping, schedule, optimizer and its saved state handle it."""
    settings = [
        "training.steps=6", "training.gradient_clip=1.0", "checkpoints.unit='step'",
        "loss={name='sampled-classes', class_fraction=0.25, loss={name='norm-softmax', temperature=0.05}}",
        "checkpoints.every=2", "evaluation.test=true", f"optimizer.name={optimizer!r}", "dataset.max_classes=60",
        "schedule.'optimizer.lr'={kind='cosine', end=0.0}", "sampler.classes_per_batch=5",
    ]  # fmt: skip
    recipe = load_recipe("glyphs-tiny", settings, registry())
    whole = train(recipe, tmp_path / "whole", registry=registry(), console=Console(quiet=True))
    cut = tmp_path / "cut"
    shutil.copytree(whole.path, cut)
    shutil.rmtree(cut / "checkpoints" / "step-00000006")
    (cut / "evaluation.json").unlink()
    again = train(recipe, cut, resume=True, registry=registry(), console=Console(quiet=True))
    one, other = (checkpoint.newest_intact(folder.checkpoints) for folder in (whole, again))
    assert one.step == other.step == 6
    assert torch.equal(one.state()["loss"]["class_weights"], other.state()["loss"]["class_weights"])
    assert whole.metrics.read_bytes() == again.metrics.read_bytes()
