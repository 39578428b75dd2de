"""`dml data check --leaks` lists all near-copies of training images in the test split, with the
files.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from rich.console import Console
from train_support.photo_world import photo_document

from dml_core import DmlError, registry
from dml_train import embed_split, find_leaks
from dml_train.cli import main
from dml_train.recipe.checking import parse
from dml_train.trained import leaks as module
from dml_train.training.run import train


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[Path, Path]:
    """Make a folder of images, with 2 test images made from training images, and a run that used
    this folder.
    """
    root = tmp_path_factory.mktemp("leaks")
    random = np.random.default_rng(0)
    for part, first in (("train", 0), ("query", 4), ("gallery", 4)):
        for c in range(first, first + 4):
            folder = root / "data" / part / f"class {c}"
            folder.mkdir(parents=True)
            for i in range(3):
                pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((32, 32)).save(folder / f"{i}.png")
    train_folder = root / "data" / "train"
    copies = {
        "query/class 4/copy.jpg": "class 1/2.png",
        "gallery/class 6/copy.jpg": "class 3/0.png",
    }
    for copy, original in copies.items():
        with Image.open(train_folder / original) as image:
            image.convert("RGB").save(root / "data" / copy, quality=60)
    document = photo_document(root / "data") | {"loss": {"name": "norm-softmax"}}
    document["dataset"] |= {"resize": 32, "crop": 32}
    train(
        parse(document, registry()), root / "run", registry=registry(), console=Console(quiet=True)
    )
    return root / "data", root / "run"


def expected_pairs(data: Path, run: Path, threshold: float) -> list[tuple[float, str, str, str]]:
    """Compare all test images with all training images, pair by pair."""
    dataset = registry().build(
        "datasets",
        {"name": "image-folder", "root": str(data), "resize": 32, "crop": 32},
        {"seed": 0},
    )
    train_rows = embed_split(run, "train")[0].astype(np.float64)
    pairs = []
    for part, split in (("test", dataset.test), ("gallery", dataset.gallery)):
        for row, file in zip(
            embed_split(run, part)[0].astype(np.float64), split.files, strict=True
        ):
            for other, original in zip(train_rows, dataset.train.files, strict=True):
                cosine = float(row @ other / np.linalg.norm(row) / np.linalg.norm(other))
                if cosine >= threshold:
                    pairs.append((cosine, part, str(file), str(original)))
    return sorted(pairs, key=lambda pair: -pair[0])


def check(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", "check", *map(str, arguments)])


@pytest.mark.parametrize("block", [5, 10_000])
def test_every_pair_above_the_threshold_is_found(world, monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    every = expected_pairs(*world, -1)
    threshold = (every[20][0] + every[21][0]) / 2
    found = find_leaks(world[1], threshold)
    assert [(leak.part, leak.test, leak.train) for leak in found] == [
        pair[1:] for pair in every[:21]
    ]
    assert [leak.similarity for leak in found] == pytest.approx(
        [pair[0] for pair in every[:21]], rel=1e-6
    )
    copies = {(Path(leak.test).name, leak.test_class, leak.train_class) for leak in found[:2]}
    assert copies == {("copy.jpg", "class 4", "class 1"), ("copy.jpg", "class 6", "class 3")}


def test_the_command_lists_pairs_writes_a_table_and_exits_with_1(world, tmp_path):
    every = expected_pairs(*world, -1)
    low, high = (every[1][0] + every[2][0]) / 2, (every[0][0] + 1) / 2
    assert every[0][0] < high < 1
    result = check("--leaks", world[1], "--threshold", low, "--out", tmp_path / "leaks.csv")
    assert result.exit_code == 1, result.output
    assert f"train {every[0][3]} (class " in result.output
    assert "2 pairs of 2 test images have a cosine of at least" in result.output
    with (tmp_path / "leaks.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["part"], row["test"], row["train"]) for row in rows] == [
        pair[1:] for pair in every[:2]
    ]
    assert [*rows[0]] == ["similarity", "part", "test", "test_class", "train", "train_class"]
    assert (
        check("--leaks", world[1], "--threshold", low, "--out", tmp_path / "leaks.csv").exit_code
        == 2
    )
    many = check("--leaks", world[1], "--threshold", -1)
    assert many.exit_code == 1
    assert (
        "292 more; --out FILE.csv writes them all" in many.output
    )  # 26 test images, 12 training images
    none = check("--leaks", world[1], "--threshold", high)
    assert none.exit_code == 0, none.output
    assert "no pair of a test image and a training image has a cosine of at least" in none.output


def test_a_path_that_is_not_utf8_keeps_its_bytes_and_is_escaped_on_the_screen(
    world, tmp_path, monkeypatch
):
    name = b"data/test/caf\xe9/0.png"
    leak = module.Leak(0.99, "test", os.fsdecode(name), os.fsdecode(b"caf\xe9"), "0.png", "class 1")
    monkeypatch.setattr(module, "find_leaks", lambda *arguments, **options: [leak])
    result = check("--leaks", world[1], "--out", tmp_path / "leaks.csv")
    assert result.exit_code == 1, result.output
    assert name in (tmp_path / "leaks.csv").read_bytes()
    assert "test data/test/caf\\udce9/0.png (caf\\udce9)" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cub", "--leaks", "RUN"], "--leaks searches the run's data set; omit FOLDER"),
        (
            ["--leaks", "RUN", "--threshold", "2"],
            "the threshold is 2.0; expected a cosine from -1 to 1",
        ),
        (["--leaks", "nowhere"], "is not a run's folder"),
    ],
    ids=["both", "beyond", "no run"],
)
def test_wrong_options_exit_with_2(world, arguments, message):
    given = [str(world[1]) if argument == "RUN" else argument for argument in arguments]
    result = check(*given)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_too_many_pairs_and_other_data_are_refused(world, monkeypatch):
    monkeypatch.setattr(module, "MOST", 100)
    with pytest.raises(
        DmlError, match=r"can't list more than .* pairs: .*Increase the threshold, which is -1"
    ):
        find_leaks(world[1], -1)
    extra = world[0] / "query" / "class 4" / "new.png"
    Image.new("RGB", (32, 32)).save(extra)
    with pytest.raises(
        DmlError, match="split 'test' contains 14 items now, but had 13 when the run ended"
    ):
        find_leaks(world[1])
    extra.unlink()
