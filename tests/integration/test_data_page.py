"""docs/guide/data.md agrees with the code: its recipe trains, and its options and addresses are the code's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from rich.console import Console
from train_support.photo_world import write_photos

from dml_core import registry
from dml_train.data.factories import image_folder
from dml_train.data.published.sets import OFFICIAL
from dml_train.recipe.loading import load_recipe
from dml_train.training.run import train

PAGE = (Path(__file__).parents[2] / "docs/guide/data.md").read_text(encoding="utf-8")


def test_the_recipe_of_the_page_trains_on_a_folder_of_images(tmp_path, monkeypatch):
    write_photos(tmp_path / "photos", classes=20, each=4)
    recipe_of_page, changes, _ = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(recipe_of_page, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder = train(
        load_recipe("mine.toml", ["training.epochs=1"], registry()),
        Path("runs/mine"),
        console=Console(quiet=True),
    )
    assert folder.evaluation.is_file()
    # For a GPU, two tables replace those of the recipe, and the data set's sizes are omitted.
    tables = {re.match(r"\[(\w+)\]", table)[1]: table for table in re.split(r"\n(?=\[)", recipe_of_page)}
    tables |= {re.match(r"\[(\w+)\]", table)[1]: table for table in re.split(r"\n(?=\[)", changes)}
    tables["dataset"] = re.sub(r"(resize|crop) = .*\n", "", tables["dataset"])
    (tmp_path / "gpu.toml").write_text("\n".join(tables.values()), encoding="utf-8")
    recipe = load_recipe("gpu.toml", [], registry())
    assert (recipe.dataset["crop"], recipe.backbone["model"]) == (224, "resnet50")


def test_the_page_lists_every_option_with_its_default():
    found = dict(re.findall(r"^\| `(\w+)(?: = ([^`]+))?` \|", PAGE, flags=re.MULTILINE))
    options = {
        name: parameter.default
        for name, parameter in inspect.signature(image_folder).parameters.items()
        if name not in ("root", "train_fraction", "split_seed")
    }
    written = {
        name: "" if default is None else str(default).lower() if isinstance(default, bool) else default
        for name, default in options.items()
    }
    assert {name: found[name].strip('"') for name in options} == {
        n: str(value) for n, value in written.items()
    }


@pytest.mark.parametrize("official", OFFICIAL.values(), ids=lambda official: official.name)
def test_the_page_lists_every_address_checksum_and_count(official):
    for archive in official.archives:
        for fact in (archive.name, archive.address, archive.md5):
            assert fact is None or fact in PAGE
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{official.name}` | "))
    for images, classes in official.published.values():
        assert f"{images:,}" in row
        assert f"{classes:,}" in row
