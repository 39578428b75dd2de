"""Recipes and tables of docs/guide and docs/reference are valid or train, and the page on data
agrees with the code.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torchvision import models
from train_support.photo_world import write_photos

from dml_core import registry
from dml_train.data.factories import image_folder
from dml_train.data.published.sets import OFFICIAL
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import load_recipe
from dml_train.trained.model import open_model
from dml_train.training import checkpoint
from dml_train.training.build import build
from dml_train.training.run import train

DOCS = Path(__file__).parents[2] / "docs"
DATA, MODELS, TABLES = (
    (DOCS / page).read_text(encoding="utf-8")
    for page in ("guide/data.md", "guide/models.md", "reference/recipe-tables.md")
)
BLOCKS = re.findall(r"^```toml\n(.*?)^```", MODELS, flags=re.DOTALL | re.MULTILINE)


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
    start = {
        "name": "torchvision",
        "model": "squeezenet1_1",
        "weights": str(tmp_path / "start.pth"),
    }
    recipe = parse(document | {"backbone": start, "embedding": {"dim": 4}}, registry())
    train(recipe, tmp_path / "run", registry=registry(), console=Console(quiet=True))
    (tmp_path / "start.pth").unlink()
    assert open_model(tmp_path / "run", registry()).dim == 4


def test_the_recipe_of_the_page_mines_negatives_of_other_classes(tmp_path):
    (recipe_of_page,) = re.findall(r"```toml\n(.*?)```", TABLES, flags=re.DOTALL)
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


def test_the_recipe_of_the_page_trains_on_a_folder_of_images(tmp_path, monkeypatch):
    write_photos(tmp_path / "photos", classes=20, each=4)
    recipe_of_page, changes, _, _, augmentation = re.findall(
        r"```toml\n(.*?)```", DATA, flags=re.DOTALL
    )
    (tmp_path / "mine.toml").write_text(recipe_of_page, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    document = load_recipe("mine.toml", ["training.epochs=1"], registry()).to_dict()
    document["dataset"] |= tomllib.loads(augmentation)["dataset"]
    folder = train(parse(document, registry()), Path("runs/mine"), console=Console(quiet=True))
    assert folder.evaluation.is_file()
    # When a GPU is used, the page replaces tables of the recipe and omits the data set's sizes.
    tables = {
        re.match(r"\[(\w+)\]", table)[1]: table for table in re.split(r"\n(?=\[)", recipe_of_page)
    }
    tables |= {re.match(r"\[(\w+)\]", table)[1]: table for table in re.split(r"\n(?=\[)", changes)}
    tables["dataset"] = re.sub(r"(resize|crop) = .*\n", "", tables["dataset"])
    (tmp_path / "gpu.toml").write_text("\n".join(tables.values()), encoding="utf-8")
    recipe = load_recipe("gpu.toml", [], registry())
    assert (recipe.dataset["crop"], recipe.backbone["model"]) == (224, "resnet50")


def test_the_page_lists_every_option_with_its_default():
    found = dict(re.findall(r"^\| `(\w+)(?: = ([^`]+))?` \|", DATA, flags=re.MULTILINE))
    options = {
        name: parameter.default
        for name, parameter in inspect.signature(image_folder).parameters.items()
        if name not in ("root", "train_fraction", "split_seed")
    }
    written = {
        name: ""
        if default is None
        else str(default).lower()
        if isinstance(default, bool)
        else default or "[]"
        for name, default in options.items()
    }
    assert {name: found[name].strip('"') for name in options} == {
        n: str(value) for n, value in written.items()
    }


@pytest.mark.parametrize("official", OFFICIAL.values(), ids=lambda official: official.name)
def test_the_page_lists_every_address_checksum_and_count(official):
    for archive in official.archives:
        for fact in (archive.name, archive.address, archive.md5):
            assert fact is None or fact in DATA
    (row,) = (line for line in DATA.splitlines() if line.startswith(f"| `{official.name}` | "))
    for images, classes in official.published.values():
        assert f"{images:,}" in row
        assert f"{classes:,}" in row
