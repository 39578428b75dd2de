"""`dml data check FOLDER` finds and names images that would disturb a training."""

from __future__ import annotations

import csv
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_core import Registry
from dml_core import registry as installed
from dml_train import inspect_images
from dml_train.data.inspection import NearDuplicate


@pytest.fixture
def registry() -> Registry:
    return installed()


def picture(seed: int, width: int = 96, height: int = 80) -> Image.Image:
    """Draw soft spots of colour, so that perceptual hashes differ between seeds, but hardly between
    sizes.
    """
    spots = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Draw eight classes of four different images."""
    root = tmp_path / "photos"
    for c in range(8):
        (root / f"class {c}").mkdir(parents=True)
        for i in range(4):
            picture(10 * c + i).save(root / f"class {c}" / f"{i}.png")
    return root


def test_good_images_have_no_findings_and_the_command_exits_with_0(dml, photos):
    output = dml("data", "check", photos).output
    assert f"{photos}: 32 images of 8 classes\n" in output
    assert "broken" not in output
    assert "identical pixels: none\nnear-duplicates: none\n" in output
    assert "split: 4 classes (16 images) train, 4 classes (16 images) are measured" in output


def test_counts_sizes_and_broken_images_are_listed_and_the_command_exits_with_1(dml, photos):
    for number in (1, 2, 3):
        (photos / "class 0" / f"{number}.png").unlink()
    picture(90, 300, 400).save(photos / "class 1" / "large.png")
    picture(91, 20, 10).save(photos / "class 1" / "tiny.png")
    cut, empty = photos / "class 1" / "0.png", photos / "class 2" / "0.png"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    empty.write_bytes(b"")
    output = dml("data", "check", photos, code=1).output
    for expected in (
        "31 images of 8 classes, 2 of them broken",
        "              1        1  ######\n",
        "         2 to 3        0\n",
        f"         4 to 7        7  {'#' * 40}\n",
        "classes with a single image, which has no match: 1 (class 0)",
        "images_per_class=4 of the sampler class-balanced, which then repeats images: 1",
        "pixels: smallest 20 x 10, median 96 x 80, largest 300 x 400; resize=72 enlarges 1 of 29",
        f"can't read the image {cut}: OSError",
        f"can't read the image {empty}: it is empty",
        "--set dataset.on_bad_image=skip",
    ):
        assert expected in output


def test_a_photograph_too_large_for_full_size_is_not_broken(photos, monkeypatch):
    picture(0, 4000, 3000).save(photos / "class 0" / "large.jpg")
    monkeypatch.setattr("dml_train.data.decoding.read_image.__defaults__", (None, 5_000_000))
    assert not inspect_images(photos).bad


def test_identical_pixels_are_found_within_and_across_classes(dml, photos):
    stored = Image.open(photos / "class 0" / "0.png")
    stored.save(photos / "class 0" / "again.bmp")  # a different file with equal pixels
    stored.save(photos / "class 5" / "again.png", compress_level=1)
    output = dml("data", "check", photos, code=1).output
    assert "identical pixels: 1 group, 1 across classes" in output
    assert (
        f"  {Path('class 0/0.png')} = {Path('class 0/again.bmp')} = {Path('class 5/again.png')}\n"
        in output
    )


def test_an_edited_copy_is_a_near_duplicate(photos):
    original = photos / "class 3" / "1.png"
    smaller, within = photos / "class 6" / "z.jpg", photos / "class 3" / "bright.png"
    Image.open(original).resize((70, 60)).save(smaller, quality=80)
    Image.open(original).point(lambda value: min(255, value + 12)).save(within)
    found = inspect_images(photos)
    assert {frozenset(pair[:2]) for pair in found.near} == {
        frozenset(pair) for pair in ((original, smaller), (original, within), (smaller, within))
    }
    assert all(isinstance(pair, NearDuplicate) and 0 <= pair.bits <= 4 for pair in found.near)
    assert found.class_of[original] == found.class_of[within] != found.class_of[smaller]


def test_hashes_are_compared_as_by_hand(photos):
    from imagehash import phash

    for seed in range(60):  # increasing edits of an image, up to and above the limit
        noise = np.random.default_rng(seed).normal(scale=2 * seed, size=(80, 96, 3))
        edited = (np.asarray(picture(7)) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(edited).save(photos / "class 0" / f"edited {seed:02}.png")
    found = inspect_images(photos)
    files = sorted({*found.sizes} - {file for group in found.duplicates for file in group[1:]})
    hashes = {file: phash(Image.open(file).convert("RGB")) for file in files}
    expected = {
        (first, second, bits)
        for place, first in enumerate(files)
        for second in files[place + 1 :]
        if (bits := hashes[first] - hashes[second]) <= 4
    }
    assert {(*pair,) for pair in found.near} == expected
    assert expected


def test_without_the_extra_the_rest_is_checked_and_the_package_named(dml, photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagehash", None)
    output = dml("data", "check", photos).output
    assert "identical pixels: none" in output
    assert "near-duplicates: not searched" in output
    assert "pip install 'dml-train[duplicates]'" in output


def test_all_findings_are_written_to_a_table(dml, photos, tmp_path):
    for number in range(15):
        shift = 2 * number
        Image.open(photos / "class 0" / "0.png").save(
            photos / f"class {shift % 8}" / f"copy {number}.bmp"
        )
    (photos / "class 1" / "broken, or not.png").write_bytes(b"x")
    if os.name == "posix":
        (photos / "class 1" / "0.png").rename(photos / "class 1" / os.fsdecode(b"caf\xe9.png"))
        (photos / "class 1" / os.fsdecode(b"caf\xe9 2.png")).write_bytes(b"y")
    output = dml("data", "check", photos, "--out", tmp_path / "found.csv", code=1).output
    assert "identical pixels: 1 group" in output
    with (tmp_path / "found.csv").open(
        encoding="utf-8", errors="surrogateescape", newline=""
    ) as file:
        rows = [*csv.DictReader(file)]
    assert [row["finding"] for row in rows].count("duplicate") == 15
    broken = {row["image"]: row["class"] for row in rows if row["finding"] == "broken"}
    assert broken[str(photos / "class 1" / "broken, or not.png")] == "class 1"
    assert len(broken) == (2 if os.name == "posix" else 1)
    assert dml("data", "check", photos, "--out", tmp_path / "found.csv", code=2)


def test_a_table_or_folders_of_parts_are_checked_by_their_own_split(dml, photos, tmp_path):
    lines = [
        f"class {c}/{i}.png,c{c},{'train' if c < 5 else 'test'}" for c in range(8) for i in range(4)
    ]
    (photos / "mine.csv").write_text("\n".join(["path,label,split", *lines]), encoding="utf-8")
    expected = "split: 5 classes (20 images) train, 3 classes (12 images) are measured\n"
    assert expected in dml("data", "check", photos / "mine.csv").output
    (photos / "mine.csv").rename(tmp_path / "elsewhere.csv")
    assert expected in dml("data", "check", tmp_path / "elsewhere.csv", "--root", photos).output
    for c in range(8):
        part = photos / ("train" if c < 6 else "test")
        part.mkdir(exist_ok=True)
        (photos / f"class {c}").rename(part / f"class {c}")
    output = dml("data", "check", photos).output
    assert "split: 6 classes (24 images) train, 2 classes (8 images) are measured\n" in output


def test_the_suggested_command_is_one_that_checks_the_same_images(
    dml, photos, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (photos / "class 7" / "broken.png").write_bytes(b"x")
    photos = photos.rename(photos.with_name("my 'own' photos"))
    (command,) = (
        line
        for line in dml("data", "check", photos, code=1).output.splitlines()
        if line.startswith("dml ")
    )
    words = shlex.split(command)[1:]
    words[words.index("--out") :] = ["--check"]  # a batch has as many images as the training split
    assert "on 16 images of 4 classes" in dml(*words).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "check"], "expected a folder of images, a table"),
        (["data", "check", "cubs"], "cubs doesn't exist; did you mean 'cub'?"),
        (["data", "check", "cub"], "expected the folder: --root FOLDER"),
        (["data", "check", ".", "--decode"], "--decode only works with a published data set"),
        (["data", "check", ".", "--root", "."], "omit root"),
        (["data", "check", "."], "contains 0 folders with images"),
        (["data", "check", "cub", "--root", ".", "--out", "x.csv"], "cub is a published data set"),
        (["data", "check", ".", "--threshold", "0.5"], "--threshold and --step need --leaks RUN"),
    ],
)
def test_a_mistake_is_one_message(dml, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in " ".join(dml(*arguments, code=2).output.split())


def test_images_too_plain_for_a_hash_are_no_error(photos, monkeypatch):
    monkeypatch.setattr("dml_train.data.inspection._MOST_PAIRS", 3)
    for grey in range(6):
        Image.new("RGB", (32, 32), (40 * grey,) * 3).save(photos / "class 0" / f"plain {grey}.png")
    found = inspect_images(photos)
    assert found.near == []
    assert "too plain for a perceptual hash" in found.without_near
