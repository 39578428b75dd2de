"""Folders of images: their classes, and the split into training and test classes."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_core import DmlError
from dml_train.data import FileDatasetFactory, read_image_folder
from dml_train.trained.images import find_images

image_folder = FileDatasetFactory(read_image_folder)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten classes of three images, and beside them a hidden folder, an empty folder and a text file."""
    root = tmp_path / "images"
    for c in range(10):
        (root / f"class {c}" / "deeper").mkdir(parents=True)
        for i in range(3):
            place = "deeper" if i else "."
            noise(40 + c, 30 + i, seed=3 * c + i).save(root / f"class {c}" / place / f"{i}.png")
    (root / ".cache").mkdir()
    noise(8, 8).save(root / ".cache" / "x.png")
    (root / "empty").mkdir()
    (root / "README.txt").write_text("images")
    return root


def small(root: Path, **options):
    return image_folder(str(root), crop=16, resize=20, **options)


# --- classes --------------------------------------------------------------------------------------------------


def test_classes_are_split_into_disjoint_parts(folder):
    dataset = small(folder, train_fraction=0.7)
    train, test = set(dataset.train.class_names), set(dataset.test.class_names)
    assert (len(train), len(test)) == (7, 3)
    assert train | test == {f"class {c}" for c in range(10)}
    assert [*dataset.test.labels] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(dataset.train) == 21


def test_the_split_is_a_function_of_its_seed(folder):
    first, again, other = (set(small(folder, split_seed=s).train.class_names) for s in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_each_part_has_at_least_one_class(folder, fraction):
    dataset = small(folder, train_fraction=fraction)
    assert min(len(dataset.train.class_names), len(dataset.test.class_names)) == 1


def test_folders_train_and_test_are_the_parts(tmp_path, folder):
    (tmp_path / "parts").mkdir()
    folder.rename(tmp_path / "parts" / "train")
    (tmp_path / "parts" / "test" / "unseen").mkdir(parents=True)
    noise(30, 30).save(tmp_path / "parts" / "test" / "unseen" / "a.png")
    dataset = small(tmp_path / "parts")
    assert len(dataset.train.class_names) == 10
    assert dataset.test.class_names == ("unseen",)


def test_a_class_in_both_parts_is_refused(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
        noise(8, 8).save(tmp_path / part / "cat" / "a.png")
    with pytest.raises(DmlError, match=r"class 'cat' is in .*train and in .*test \(1 such\)"):
        small(tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_images_is_refused(tmp_path, part):
    for name in ("train", "test"):
        (tmp_path / name / "cat").mkdir(parents=True)
    other = {"train": "test", "test": "train"}[part]
    noise(8, 8).save(tmp_path / other / "cat" / "a.png")
    with pytest.raises(DmlError, match=f"{part} holds no folder with images"):
        small(tmp_path)


@pytest.fixture
def parts(tmp_path):
    """Make folders of classes with one image each: ``parts(train="ab", query="c")``."""

    def make(**classes: str) -> Path:
        for part, names in classes.items():
            for name in names:
                (tmp_path / part / name).mkdir(parents=True)
                noise(24, 24).save(tmp_path / part / name / "1.png")
        return tmp_path

    return make


def test_queries_are_searched_in_the_gallery_folder(parts):
    dataset = small(parts(train="ab", query="cd", gallery="dce"))
    assert dataset.test.class_names == ("c", "d")
    assert dataset.gallery.class_names == ("c", "d", "e")
    assert dataset.gallery.load(np.array([2])).shape == (1, 3, 16, 16)


def test_a_gallery_without_any_match_is_refused(parts):
    with pytest.raises(DmlError, match=r"no class of .*query is in .*gallery \(e\.g\. 'c' and 'e'\)"):
        small(parts(train="ab", query="cd", gallery="ef"))


def test_queries_without_a_match_are_logged(parts, caplog):
    small(parts(train="ab", query="cdf", gallery="de"))
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("2 of the 3 classes of ")
    assert message.endswith("e.g. 'c'; every mean omits their queries")


def test_training_classes_in_the_gallery_are_refused(parts):
    with pytest.raises(DmlError, match=r"class 'a' is in .*train and in .*gallery"):
        small(parts(train="ab", query="c", gallery="ac"))


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(DmlError, match=r"nowhere doesn't exist; expected ROOT/CLASS/IMAGE: set dataset.root"):
        small(tmp_path / "nowhere")


def test_a_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(DmlError, match="holds 0 folders with images"):
        small(tmp_path)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_a_train_fraction_outside_0_to_1_is_refused(folder, fraction):
    with pytest.raises(ValueError, match="expected a share above 0 and below 1"):
        small(folder, train_fraction=fraction)


def test_class_names_that_differ_only_in_unicode_form_are_refused(tmp_path):
    for name in ("caf\u00e9", "cafe\u0301", "tea"):
        (tmp_path / name).mkdir()
        noise(8, 8).save(tmp_path / name / "1.png")
    with pytest.raises(
        DmlError, match=r"two classes of .* have one name: .* differ only in spaces or in the"
    ):
        small(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x89PNG\r\n\x1a\n\x00\x00"], ids=["empty", "text", "truncated"]
)
def test_a_file_that_is_no_image_is_named_before_training(folder, content):
    (folder / "class 3" / "bad.png").write_bytes(content)
    with pytest.raises(DmlError, match=r"can't read the image .*class 3/bad\.png: .*repair or remove"):
        small(folder)


# --- folders of another form ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "find", [lambda folder: read_image_folder(str(folder)), find_images], ids=["classes", "images"]
)
def test_a_folder_that_cannot_be_read_is_no_empty_one(folder, monkeypatch, find):
    closed, scandir = folder / "class 4" / "deeper", os.scandir

    def refuse(path):
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(closed))
        return scandir(path)

    # Not by the folder's mode: root may read any folder.
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DmlError, match=f"can't read the folder {re.escape(str(closed))}: Permission denied"):
        find(folder)


def test_images_without_class_folders_are_counted(tmp_path):
    for number in range(5):
        noise(8, 8).save(tmp_path / f"{number}.png")
    with pytest.raises(
        DmlError, match="holds 0 folders with images and 5 images directly in it; expected ROOT/CLASS"
    ):
        small(tmp_path)


def test_files_that_are_no_images_are_named(tmp_path):
    (tmp_path / ".hidden").touch()
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.heic").touch()
    with pytest.raises(
        DmlError, match=r"0 folders with images and other files, such as cat/1\.heic; expected ROOT"
    ):
        small(tmp_path)


def test_a_single_class_is_named(tmp_path):
    (tmp_path / "cat").mkdir()
    noise(8, 8).save(tmp_path / "cat" / "a.png")
    with pytest.raises(
        DmlError, match=r"holds 1 folder with images \(cat\); expected .* at least two classes"
    ):
        small(tmp_path)


def test_a_folder_above_the_class_folders_is_answered_with_the_setting(tmp_path, folder):
    with pytest.raises(DmlError, match=f"holds class folders: --set dataset.root={folder}$"):
        small(tmp_path)


def test_parts_under_other_names_are_not_taken_for_classes(tmp_path):
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / part / f"{part} {name}").mkdir(parents=True)
            noise(8, 8).save(tmp_path / part / f"{part} {name}" / "a.png")
    with pytest.raises(
        DmlError, match="holds the folders train, val, which are names of parts and not of classes"
    ):
        small(tmp_path)
