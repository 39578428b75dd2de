"""Recipes of the documentation and of the package are valid with everything installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dml_core import registry
from dml_train.recipe.bundled import bundled_recipes
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe

README = Path(__file__).parents[2] / "packages/dml-train/README.md"


def test_the_recipe_of_the_readme_is_valid():
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    recipe = parse(tomllib.loads(text), registry())
    assert recipe.schedule["model.backbone_trains"]["values"] == [0, 1]


@pytest.mark.parametrize("name", bundled_recipes())
def test_every_bundled_recipe_is_valid(name):
    assert load_recipe(name, [], registry()).training.seed == 0
