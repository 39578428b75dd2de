"""`dml eval RUN FOLDER`: a run evaluated on a user's images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from train_support.photo_world import write_photos

from dml_train import embed_folder, evaluate_embeddings, evaluate_run, open_model


@pytest.fixture(scope="module")
def world(photo_run: Path) -> tuple[Path, Path]:
    """Return the folder of photos that a run was trained on, and the run."""
    return photo_run.parent / "data", photo_run


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """Write images that the run wasn't trained on, some into a wrong folder, and one into a
    subfolder.
    """
    folder = write_photos(tmp_path / "held", classes=4, each=6, seed=7)
    for c in range(4):
        (folder / f"class-{c}" / "5.png").rename(folder / f"class-{(c + 1) % 4}" / "wrong.png")
    (folder / "class-0" / "deeper").mkdir()
    (folder / "class-0" / "0.png").rename(folder / "class-0" / "deeper" / "0.png")
    return folder


def test_other_images_are_measured_as_their_embeddings_are(dml, registry, world, held, tmp_path):
    result = dml("eval", world[1], held, "--out", tmp_path / "held.json")
    embed_folder(
        open_model(world[1], registry), held, tmp_path / "e.npy", labels=tmp_path / "l.npy"
    )
    expected = evaluate_embeddings(
        np.load(tmp_path / "e.npy"), np.load(tmp_path / "l.npy"), registry=registry
    ).to_dict()
    assert json.loads((tmp_path / "held.json").read_text()) == expected
    assert 0 < expected["recall@1"] < 1
    assert evaluate_run(world[1], held, registry=registry).to_dict() == expected
    assert "training images" not in result.stderr


def test_training_images_among_them_are_counted(dml, world):
    assert (
        "15 of these 30 images are training images of the run"
        in dml("eval", *reversed(world)).stderr
    )


def test_a_prefix_is_measured_alone(dml, registry, world, held, tmp_path):
    dml("eval", world[1], held, "--prefix", 1, "--prefix", 12, "--out", tmp_path / "by.json")
    measured = json.loads((tmp_path / "by.json").read_text())
    assert measured["12"] == evaluate_run(world[1], held, registry=registry).to_dict()
    assert measured["1"] == evaluate_run(world[1], held, prefix=1, registry=registry).to_dict()
    assert measured["1"] != measured["12"]


def test_a_broken_image_is_an_error_or_skipped(dml, registry, world, held):
    (held / "class-2" / "1.png").write_bytes(b"")
    message = dml("eval", world[1], held, code=2).stderr
    assert f"{held / 'class-2' / '1.png'}: it is empty" in " ".join(message.split())
    assert "--on-bad-image skip" in message
    skipped = dml("eval", world[1], held, "--on-bad-image", "skip")
    assert f"skipped: can't read the image {held / 'class-2' / '1.png'}" in skipped.stderr
    without = evaluate_run(world[1], held, skip=True, registry=registry).to_dict()
    (held / "class-2" / "1.png").unlink()
    assert evaluate_run(world[1], held, registry=registry).to_dict() == without


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "doesn't exist; expected a folder of images"),
        (lambda held: [shutil.rmtree(folder) for folder in held.iterdir()], "contains no images"),
        (
            lambda held: shutil.copy(held / "class-1" / "1.png", held / "loose.png"),
            "loose.png is not in any",
        ),
        (
            lambda held: [file.unlink() for file in held.rglob("*.png") if file.name != "1.png"],
            "contains 4 classes of a single image, so that queries can't be matched",
        ),
    ],
    ids=["no folder", "no image", "a loose image", "one of each"],
)
def test_images_without_classes_are_one_message(dml, world, held, damage, message):
    damage(held)
    assert message in dml("eval", world[1], held, code=2).stderr


def test_a_run_takes_no_arrays(dml, world, held):
    embeddings = world[1] / "embeddings.npy"
    assert (
        "is not a folder; expected a folder of images"
        in dml("eval", world[1], embeddings, code=2).stderr
    )
    expected = "omit --gallery, --gallery-labels, --groups and --gallery-groups"
    assert expected in dml("eval", world[1], held, "--gallery", embeddings, code=2).stderr
