"""Recipes of several levels: a paper's, on a folder of images, and those of docs/guide/models.md."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torchvision import models

from dml_core import registry
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe
from dml_train.trained.model import open_model
from dml_train.training.run import train

PAGE = Path(__file__).parents[2] / "docs/guide/models.md"


def test_a_papers_recipe_of_three_levels_trains_and_evaluates(tmp_path):
    random = np.random.default_rng(0)
    for c in range(8):
        (tmp_path / "birds" / f"bird-{c}").mkdir(parents=True)
        for k in range(3):
            pixels = random.integers(0, 256, (70, 80, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "birds" / f"bird-{c}" / f"{k}.png")
    document = load_recipe("rll/lmh-cub", [], registry()).to_dict()
    del document["backbone"]["weights"]
    document["dataset"] |= {"name": "image-folder", "root": str(tmp_path / "birds"), "resize": 72, "crop": 64}
    document["sampler"]["classes_per_batch"] = 3
    document["training"] |= {"steps": 1, "workers": 0, "device": "cpu"}
    document["logging"] = {"loggers": [{"name": "jsonl"}]}
    recipe = parse(document, registry())
    folder = train(recipe, tmp_path / "run", registry=registry(), console=Console(quiet=True))
    embeddings = np.load(folder.embeddings())
    assert embeddings.shape == (12, 3 * 512)
    # Three concatenated unit vectors, in float32.
    np.testing.assert_allclose(np.square(embeddings).sum(axis=1), 3.0, rtol=1e-4)
    assert json.loads(folder.evaluation.read_text()).keys() >= {f"recall@{k}" for k in (1, 2, 4, 8)}


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
