"""Folders of images: classes, and the split into training and test classes."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml_core import DmlError
from dml_train.data.factories import image_folder
from dml_train.data.image_folder import read_image_folder
from dml_train.trained.images import list_folder


def write(root: Path, *files: str) -> Path:
    """Write these images; other files are empty."""
    for number, name in enumerate(files):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".png"):
            pixels = np.random.default_rng(number).integers(0, 256, (24, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name)
        else:
            (root / name).touch()
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write ten classes of three images, a hidden folder, an empty folder and a text file."""
    images = [
        f"class {c}/{place}.png" for c in range(10) for place in ("0", "deeper/1", "deeper/2")
    ]
    write(tmp_path / "images", *images, ".cache/x.png", "README.txt")
    (tmp_path / "images" / "empty").mkdir()
    return tmp_path / "images"


def small(root: Path, **options):
    return image_folder(str(root), crop=16, resize=20, **options)


def test_classes_are_split_into_disjoint_parts(folder):
    dataset = small(folder, train_fraction=0.7)
    train, test = set(dataset.train.class_names), set(dataset.test.class_names)
    assert (len(train), len(test)) == (7, 3)
    assert train | test == {f"class {c}" for c in range(10)}
    assert [*dataset.test.labels] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(dataset.train) == 21


def test_the_split_depends_on_its_seed_and_each_part_has_a_class(folder):
    first, again, other = (set(small(folder, split_seed=s).train.class_names) for s in (1, 1, 2))
    assert first == again != other
    for fraction in (0.01, 0.99):
        dataset = small(folder, train_fraction=fraction)
        assert min(len(dataset.train.class_names), len(dataset.test.class_names)) == 1
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="expected a share above 0 and below 1"):
            small(folder, train_fraction=fraction)


def test_folders_train_and_test_are_the_parts(tmp_path, folder):
    (tmp_path / "parts").mkdir()
    folder.rename(tmp_path / "parts" / "train")
    dataset = small(write(tmp_path / "parts", "test/unseen/a.png"))
    assert len(dataset.train.class_names) == 10
    assert dataset.test.class_names == ("unseen",)


def parts(root: Path, **classes: str) -> Path:
    """Make folders of classes with a single image: ``parts(root, train="ab", query="c")``."""
    return write(
        root, *(f"{part}/{name}/1.png" for part, names in classes.items() for name in names)
    )


def test_queries_are_searched_in_the_gallery_folder(tmp_path):
    dataset = small(parts(tmp_path, train="ab", query="cd", gallery="dce"))
    assert dataset.test.class_names == ("c", "d")
    assert dataset.gallery.class_names == ("c", "d", "e")
    assert dataset.gallery.load(np.array([2])).shape == (1, 3, 16, 16)


def test_queries_without_a_match_are_logged(tmp_path, caplog):
    small(parts(tmp_path, train="ab", query="cdf", gallery="de"))
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("2 of the 3 classes of ")
    assert message.endswith("e.g. 'c'; metrics omit the queries of these classes")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["train/cat/a.png", "test/cat/a.png"],
         r"class 'cat' is in .*train and in .*test \(1 in both\)"),
        (["train/cat/a.png", "test/cat/a.txt"], "test doesn't contain a folder with images"),
        (["train/cat/a.txt", "test/cat/a.png"], "train doesn't contain a folder with images"),
        (
            ["train/a/1.png", "query/c/1.png", "gallery/e/1.png"],
            r"no class of .*query is in .*gallery \(e\.g\. 'c' and 'e'\)",
        ),
        (
            ["train/a/1.png", "query/c/1.png", "gallery/a/1.png", "gallery/c/1.png"],
            r"class 'a' is in .*train and in .*gallery",
        ),
        ([], "contains 0 folders with images"),
        (["caf\u00e9/1.png", "cafe\u0301/1.png", "tea/1.png"],
         "look equal: .* differ only in spaces or in the"),
        (["1.png", "2.png"],
         "contains 0 folders with images and 2 images directly in it; expected ROOT/CLASS"),
        ([".hidden", "cat/1.heic"],
         r"0 folders with images and other files, such as cat/1\.heic; expected ROOT"),
        (["cat/a.png"], r"contains 1 folder with images \(cat\); expected .* at least two classes"),
        (
            ["train/a/1.png", "train/b/1.png", "val/c/1.png"],
            "contains the folders train, val, which are names of parts, not of classes",
        ),
    ],
)  # fmt: skip
def test_a_folder_without_two_separate_sets_of_classes_is_refused(tmp_path, files, message):
    with pytest.raises(DmlError, match=message):
        small(write(tmp_path, *files))


def test_a_missing_folder_and_a_folder_above_the_class_folders_are_answered_with_the_setting(
    tmp_path, folder
):
    with pytest.raises(
        DmlError, match=r"nowhere doesn't exist; expected ROOT/CLASS/IMAGE: set dataset.root"
    ):
        small(tmp_path / "nowhere")
    with pytest.raises(DmlError, match=f"contains class folders: --set dataset.root={folder}$"):
        small(tmp_path)


def test_a_file_that_is_no_image_is_named_before_training(folder):
    (folder / "class 3" / "bad.png").write_bytes(b"hello")
    with pytest.raises(
        DmlError, match=r"can't read the image .*class 3/bad\.png: .*repair or remove"
    ):
        small(folder)


@pytest.mark.parametrize(
    "find", [lambda folder: read_image_folder(str(folder)), list_folder], ids=["classes", "images"]
)
def test_a_folder_that_cannot_be_read_is_no_empty_one(folder, monkeypatch, find):
    closed, scandir = folder / "class 4" / "deeper", os.scandir

    def refuse(path):
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(closed))
        return scandir(path)

    # Don't change the folder's mode instead, since root may read any folder.
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(
        DmlError, match=f"can't read the folder {re.escape(str(closed))}: Permission denied"
    ):
        find(folder)
