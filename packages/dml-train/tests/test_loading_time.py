"""A run that waits for images longer than it computes should say so once, naming the settings that
help.
"""

from __future__ import annotations

import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from train_support.photo_world import photo_document, write_photos

from dml_core import Registry
from dml_train.data.file_dataset import FileSplit
from dml_train.recipe.checking import parse
from dml_train.training import step_values
from dml_train.training.replica import Replica
from dml_train.training.run import train


@pytest.fixture
def slow(monkeypatch):
    """Make a method, which loads or embeds batches, take `seconds` seconds or more."""
    monkeypatch.setattr(step_values, "_LEAST_SECONDS", 0.25)

    def slow(kind: type, method: str, seconds: float) -> None:
        original = getattr(kind, method)

        def slowed(*arguments, **options):
            time.sleep(seconds)
            return original(*arguments, **options)

        monkeypatch.setattr(kind, method, slowed)

    return slow


def said(tmp_path: Path, registry: Registry, **dataset: object) -> str:
    document = photo_document(write_photos(tmp_path / "photos"))
    document["dataset"] |= dataset
    document["training"]["steps"] = 12
    document["logging"]["every"] = 2
    console = Console(file=StringIO(), width=1000)
    train(parse(document, registry), tmp_path / "run", registry=registry, console=console)
    return console.file.getvalue()


def test_slow_loading_is_said_once_with_the_cache_and_the_workers(tmp_path, registry, slow):
    slow(FileSplit, "load", 0.1)
    text = said(tmp_path, registry)
    assert text.count("loading images takes") == 1
    assert (
        "longer than the steps; decode each image once (--set dataset.cache=FOLDER), or load in"
        in text
    )
    assert "(training.workers is 0, and the machine has" in text


def test_a_run_with_a_cache_is_not_told_of_it(tmp_path, registry, slow):
    slow(FileSplit, "load", 0.1)
    text = said(tmp_path, registry, cache=str(tmp_path / "cache"))
    assert text.count("loading images takes") == 1
    assert "dataset.cache" not in text


@pytest.mark.parametrize(("embed", "load", "least"), [(0.1, 0.01, 0.25), (0.0, 0.1, 10.0)])
def test_slow_steps_and_a_run_of_seconds_are_not_blamed_on_loading(
    tmp_path, registry, slow, monkeypatch, embed, load, least
):
    slow(Replica, "embed", embed)
    slow(FileSplit, "load", load)
    monkeypatch.setattr(step_values, "_LEAST_SECONDS", least)
    assert "loading images takes" not in said(tmp_path, registry)
