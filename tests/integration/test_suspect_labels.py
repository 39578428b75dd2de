"""`dml data suspects` ranks labels, and writes tables with corrected labels."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from train_support.photo_world import photo_document, write_photos

from dml_core import DmlError, registry
from dml_train.cli import main
from dml_train.data.csv_table import read_csv_table
from dml_train.recipe.checking import parse
from dml_train.trained.suspects import find_suspects, write_corrected
from dml_train.training.run import train


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def dml(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write thirty photos, five per class."""
    return write_photos(tmp_path / "photos", seed=1)


@pytest.fixture(scope="module")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on other photos for three steps."""
    folder = tmp_path_factory.mktemp("trained")
    document = photo_document(write_photos(folder / "data")) | {"loss": {"name": "norm-softmax"}}
    recipe = parse(document, registry())
    return train(recipe, folder / "run", registry=registry(), console=Console(quiet=True)).path


@pytest.fixture
def embedded(photos: Path, tmp_path: Path) -> Path:
    """Move a photo to the wrong class, and write embeddings in which classes are far apart."""
    shutil.move(photos / "class-1" / "0.png", photos / "class-4" / "moved.png")
    paths = sorted(path.relative_to(photos) for path in photos.rglob("*.png"))
    true = [1 if path.name == "moved.png" else int(path.parts[0][-1]) for path in paths]
    rows = np.eye(6)[true] + 0.05 * np.random.default_rng(0).normal(size=(30, 6))
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    return tmp_path / "x.npy"


def test_a_moved_image_is_listed_first_and_every_image_is_written(photos, embedded, tmp_path):
    out = tmp_path / "suspects.csv"
    result = dml("data", "suspects", photos, "--embeddings", embedded, "-k", 4, "--out", out)
    assert result.exit_code == 0, result.output
    first = result.output.splitlines()[0]
    assert first.endswith("* class-4/moved.png: class-4 -> class-1")
    assert "confident learning counts 1 of 30 labels as wrong" in result.output
    assert "near-duplicates with different labels: 4" in result.output
    rows = rows_of(out)
    assert (len(rows), rows[0]["path"]) == (30, "class-4/moved.png")
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)


def test_labels_and_image_names_can_come_from_files(photos, embedded, tmp_path):
    names = [
        f"{path}" for path in sorted(path.relative_to(photos) for path in photos.rglob("*.png"))
    ]
    (tmp_path / "x.json").write_text('{"paths": ["' + '", "'.join(names) + '"]}')
    np.save(tmp_path / "y.npy", np.arange(30) // 10)
    found = find_suspects(
        photos, 4, embeddings=embedded, labels=tmp_path / "y.npy", registry=registry()
    )
    assert found.labels[29] == "2"
    np.save(tmp_path / "y.npy", np.arange(29) // 10)
    with pytest.raises(DmlError, match="there are 30 embeddings, 29 labels and 30 images"):
        find_suspects(
            photos, 4, embeddings=embedded, labels=tmp_path / "y.npy", registry=registry()
        )


def test_a_run_ranks_its_own_images_and_embeds_a_folder(photo_run, photos):
    found = find_suspects(photo_run, 5, registry=registry())
    assert len(found.paths) == 15
    assert all(Path(path).parent.name == label for path, label in zip(found.paths, found.labels))
    assert len(find_suspects(photo_run, 5, split="train", registry=registry()).paths) == 15
    of_folder = find_suspects(photos, 5, model=photo_run, registry=registry())
    assert [suspect.path for suspect in of_folder.ranked()] != of_folder.paths
    assert {*of_folder.paths} == {f"class-{c}/{i}.png" for c in range(6) for i in range(5)}


def test_mistakes_are_named(photo_run, photos, tmp_path):
    for arguments, message in (
        ((photos,), "choose the run that embeds them, or the file of embeddings"),
        ((photo_run, "-k", 15), "k is 15; expected 1 to 14"),
        ((photos, "--apply", tmp_path / "fixes.csv"), "choose it: --out FILE.csv"),
        ((photo_run, "--split", "gallery"), "doesn't define a gallery"),
    ):
        result = dml("data", "suspects", *arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())


def test_corrections_make_a_table_that_trains_and_change_no_file(photos, embedded, tmp_path):
    before = {path: path.read_bytes() for path in photos.rglob("*.png")}
    fixes, out = tmp_path / "fixes.csv", tmp_path / "corrected.csv"
    fixes.write_text("path,label,score\nclass-4/moved.png,class-1,0.9\nclass-2/0.png,class-2,0.1\n")
    result = dml("data", "suspects", photos, "--apply", fixes, "--out", out)
    assert result.exit_code == 0, result.output
    assert "1 labels changed" in result.output
    assert (
        f'--set \'dataset={{name="csv", root="{tmp_path}", table="corrected.csv"}}\''
        in result.output
    )
    assert before == {path: path.read_bytes() for path in photos.rglob("*.png")}
    parts = read_csv_table(str(tmp_path), "corrected.csv")
    classes = {**parts.train, **parts.test}
    assert photos / "class-4" / "moved.png" in classes["class-1"]
    assert {name: len(files) for name, files in classes.items()} == {
        f"class-{c}": 5 for c in range(6)
    }

    fixes.write_text("path,label\nclass-4/moved.png,class-1\nclass-9/0.png,class-2\n")
    with pytest.raises(DmlError, match=r"fixes.csv, line 3: .*class-9/0.png is not an image of"):
        write_corrected(photos, fixes, tmp_path / "other.csv")
    assert not (tmp_path / "other.csv").exists()


def test_an_image_moves_to_the_half_of_the_corrected_class(tmp_path):
    photos = write_photos(tmp_path / "photos")
    lines = [
        f"class-{c}/{i}.png,class-{c},{split},camera-{i}"
        for c in range(6)
        for i in range(5)
        for split in ["train" if c < 3 else "query" if i == 0 else "gallery"]
    ]
    (photos / "images.csv").write_text("\n".join(["path,label,split,group", *lines]) + "\n")
    fixes, out = tmp_path / "fixes.csv", photos / "corrected.csv"
    fixes.write_text(
        "path,label\nclass-0/0.png,class-5\nclass-4/0.png,class-2\nclass-1/1.png,new\n"
    )
    assert write_corrected(photos / "images.csv", fixes, out) == 3
    parts = read_csv_table(str(photos), "corrected.csv")
    assert parts.gallery is not None
    assert photos / "class-0" / "0.png" in parts.gallery["class-5"]
    assert photos / "class-4" / "0.png" in parts.train["class-2"]
    assert parts.train["new"] == [photos / "class-1" / "1.png"]
    assert parts.groups is not None
    assert parts.groups[photos / "class-0" / "0.png"] == "camera-0"


def test_the_data_set_of_a_run_can_be_corrected(photo_run, tmp_path):
    path = find_suspects(photo_run, 5, registry=registry()).paths[0]
    (tmp_path / "fixes.csv").write_text(f"path,label\n{path},another\n")
    assert write_corrected(photo_run, tmp_path / "fixes.csv", tmp_path / "out.csv") == 1
    assert [row["path"] for row in rows_of(tmp_path / "out.csv") if row["label"] == "another"] == [
        path
    ]
