"""Recipes of the package and the README are valid, and recipes of the papers comment on settings.

The file test_recipes_of_the_papers.py checks the settings.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

from dml_core import DmlError, registry
from dml_train.data.published.sets import OFFICIAL
from dml_train.recipe.bundled import bundled_recipes, bundled_text, leading_comment
from dml_train.recipe.checking import parse
from dml_train.recipe.extending import read_chain
from dml_train.recipe.loading import load_recipe
from dml_train.training.build import build_model

README = Path(__file__).parents[2] / "packages/dml-train/README.md"
SYSTEMS = ("ice", "rll", "norm-softmax", "heated-up", "memvir")
RECIPES = [
    name for name in bundled_recipes() if name.split("/")[0] in SYSTEMS and "/glyphs" not in name
]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_or_its_parent_lists_published_stated_and_chosen_values(name):
    comments = [leading_comment(source.text).replace("\n# ", " ") for source in read_chain(name)]
    for words in ("Published", "Recall@1"):
        assert words in comments[0]
    for words in ("Paper: ", "From the paper", "chosen"):
        assert any(words in comment for comment in comments)
    assert load_recipe(name, [], registry()).dataset["name"] in OFFICIAL


@pytest.mark.parametrize("name", bundled_recipes())
def test_a_bundled_recipe_is_valid_also_with_the_settings_in_its_comment(name):
    assert load_recipe(name, [], registry()).training.seed == 0
    comment = re.sub(r"\n# ?", " ", leading_comment(bundled_text(name)))
    said = [shlex.split(words)[0] for words in re.findall(r"--set ('[^']+'|[^\s,;)]+)", comment)]
    load_recipe(name, [assignment for assignment in said if "=" in assignment], registry())


def test_the_recipe_of_the_readme_is_valid():
    (text,) = re.findall(r"```toml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert parse(tomllib.loads(text), registry()).schedule["model.backbone_trains"]["values"] == [
        0,
        1,
    ]


def test_three_levels_make_one_embedding_and_missing_weights_are_reported_with_the_page():
    document = load_recipe("rll/lmh-cub", [], registry())
    message = r"bn_inception-52deb4733\.pth', but the file doesn't exist.*docs/guide/models\.md"
    with pytest.raises(DmlError, match=message):
        build_model(document, 3, registry(), torch.device("cpu"))
    random = document.model_copy(
        update={"backbone": {k: v for k, v in document.backbone.items() if k != "weights"}}
    )
    model = build_model(random, 3, registry(), torch.device("cpu")).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 3 * 512)
