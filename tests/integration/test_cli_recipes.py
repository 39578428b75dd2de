"""What the documentation and the package offer as recipes is what `dml` takes, with everything installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dml_core import registry
from dml_train.recipe import bundled, load, parse

README = Path(__file__).parents[2] / "packages/dml-train/README.md"


def test_the_recipe_of_the_readme_is_whole_and_right():
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    recipe = parse(tomllib.loads(text), registry())
    assert recipe.schedule["model.backbone_trains"]["values"] == [0, 1]


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_recipe_is_whole_and_right(name):
    assert load(name, [], registry()).training.seed == 0
