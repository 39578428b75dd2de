"""The tables of docs/guide/models.md are valid, and a trained network opens without the weights it started from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torchvision import models

from dml_core import registry
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe
from dml_train.trained.model import open_model
from dml_train.training.run import train

PAGE = Path(__file__).parents[2] / "docs/guide/models.md"


BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_tables_of_the_page_on_models_are_valid(block):
    document = tomllib.loads(block)
    complete = load_recipe("rll/lmh-cub", [], registry()).to_dict() | document
    assert parse(complete, registry()).backbone["name"] == document["backbone"]["name"]


def test_a_trained_network_opens_without_its_pretrained_weights(tmp_path):
    torch.save(models.squeezenet1_1().state_dict(), tmp_path / "start.pth")
    document = load_recipe(
        "glyphs-tiny", ["training.steps=1", "dataset.max_classes=80"], registry()
    ).to_dict()
    start = {"name": "torchvision", "model": "squeezenet1_1", "weights": str(tmp_path / "start.pth")}
    recipe = parse(document | {"backbone": start, "embedding": {"dim": 4}}, registry())
    train(recipe, tmp_path / "run", registry=registry(), console=Console(quiet=True))
    (tmp_path / "start.pth").unlink()
    assert open_model(tmp_path / "run", registry()).dim == 4
