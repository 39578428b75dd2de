"""The papers' recipes: each has a comment on its settings, and its loss trains.

test_recipes_of_the_papers.py holds the settings.
"""

from __future__ import annotations

import re
import shlex

import pytest
import torch

from dml_core import DmlError, registry
from dml_train.data.published.sets import OFFICIAL
from dml_train.recipe.bundled import bundled_recipes, bundled_text, leading_comment
from dml_train.recipe.extending import read_chain
from dml_train.recipe.loading import load_recipe
from dml_train.training.build import build_model

SYSTEMS = ("ice", "rll", "norm-softmax", "heated-up", "memvir")
RECIPES = [name for name in bundled_recipes() if name.split("/")[0] in SYSTEMS and "/glyphs" not in name]


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
    expected |= {f"memvir/{loss}-{data}" for loss in (*losses, "baseline-norm-softmax") for data in three}
    assert expected <= set(RECIPES)


@pytest.mark.parametrize("name", [name for name in RECIPES if re.search(r"[/-]cub$|^memvir/resnet50", name)])
def test_the_loss_of_a_recipe_trains(name):
    table = {**load_recipe(name, [], registry()).loss}
    if "num_steps" in table:
        table |= {"num_steps": 1, "margin": 0, "warmup_epochs": 0}  # so that the memory contributes at once
    context = {"num_classes": 5, "embedding_dim": 16, "steps_per_epoch": 2, "seed": 0}
    loss = registry().build("losses", table, context)
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


@pytest.mark.parametrize(
    ("name", "dim", "trained"),
    [
        ("norm-softmax/2048-cub", 2048, 2048),
        ("norm-softmax/bn-inception-in-shop", 1024, 1024),
        ("rll/cub", 64, 3 * 64),
        ("rll/resnet50-sop", 128, 128),
    ],
)
def test_the_embedding_of_a_paper_has_its_size(name, dim, trained):
    """Features themselves where there is no linear layer; of three levels that train, the last."""
    recipe = load_recipe(name, [], registry())
    model = build_model(recipe, 3, registry(), torch.device("cpu"), pretrained=False)
    images = torch.zeros(2, 3, 64, 64)
    with torch.no_grad():
        assert model.eval()(images).shape == (2, dim)
        assert model.train()(images).shape == (2, trained)
