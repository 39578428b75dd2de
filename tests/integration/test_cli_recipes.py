"""What the documentation and the package offer as recipes is what `dml` takes, with everything installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from dml_core import DmlError, registry
from dml_train.recipe import bundled, load, parse
from dml_train.training import train

README = Path(__file__).parents[2] / "packages/dml-train/README.md"


def test_the_recipe_of_the_readme_is_whole_and_right():
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    recipe = parse(tomllib.loads(text), registry())
    assert recipe.schedule["model.backbone_trains"]["values"] == [0, 1]


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_recipe_is_whole_and_right(name):
    assert load(name, [], registry()).training.seed == 0


def test_a_loss_whose_gradient_the_optimizer_cannot_apply_is_refused_before_anything_moves(tmp_path):
    recipe = load("glyphs-tiny", ["training.steps=2", "loss.class_fraction=0.5"], registry())
    with pytest.raises(
        DmlError, match=r"gradient of a parameter \(100, 64\) of the loss is sparse.*class_fraction"
    ):
        train(recipe, tmp_path / "run", registry=registry(), console=Console(quiet=True))
