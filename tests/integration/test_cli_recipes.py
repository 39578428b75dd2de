"""Recipes of the documentation and of the package are valid with everything installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dml_core import DmlError, registry
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe

README = Path(__file__).parents[2] / "packages/dml-train/README.md"


def test_the_recipe_of_the_readme_is_valid():
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    recipe = parse(tomllib.loads(text), registry())
    assert recipe.schedule["model.backbone_trains"]["values"] == [0, 1]


def test_recipes_of_older_runs_have_all_classes_or_are_told_of_sampled_classes():
    old = "loss={name='memvir', num_steps=1, margin=0, loss={name='norm-softmax', class_fraction=%s}}"
    assert "class_fraction" not in load_recipe("glyphs-tiny", [old % 1.0], registry()).loss["loss"]
    with pytest.raises(
        DmlError, match=r"expected loss = \{ name = 'sampled-classes', class_fraction = 0\.5, loss = "
    ):
        load_recipe("glyphs-tiny", [old % 0.5], registry())
