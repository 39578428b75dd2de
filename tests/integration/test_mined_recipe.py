"""The recipe with mined negatives in docs/reference/recipe-tables.md trains with the exact evaluator."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from rich.console import Console

from dml_core import registry
from dml_train.recipe.loading import load_recipe
from dml_train.training import checkpoint
from dml_train.training.build import build
from dml_train.training.run import train

PAGE = (Path(__file__).parents[2] / "docs/reference/recipe-tables.md").read_text(encoding="utf-8")


def test_the_recipe_of_the_page_mines_negatives_of_other_classes(tmp_path):
    (recipe_of_page,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "mined.toml").write_text(recipe_of_page, encoding="utf-8")
    changes = ["training.steps=3", "dataset.max_classes=80", "sampler.batches_per_epoch=2"]
    recipe = load_recipe(str(tmp_path / "mined.toml"), changes, registry())
    assert (recipe.sampler["below"], recipe.sampler["margin"]) == ("easiest", 0.05)
    folder = train(recipe, tmp_path / "run", console=Console(quiet=True))
    negatives = checkpoint.newest_intact(folder.checkpoints).state()["negatives"].numpy()
    labels = build(recipe, registry()).train.labels
    assert negatives.shape == (len(labels), 10)
    found = negatives >= 0
    assert found[:, 0].mean() > 0.9
    assert (labels[negatives] != labels[:, None])[found].all()
    assert len(np.unique(negatives[found])) > len(labels) / 10
