"""The cache of decoded images must not change a number, and files that can't be decoded must be
reported.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dml_core import DmlError
from dml_train.data.factories import image_folder
from dml_train.data.file_dataset import FileDataset
from dml_train.data.preparation import Preparation

SEEDS = np.array([5, 6, 7], dtype=np.uint64)
ROWS = np.array([4, 0, 4])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write six classes with three images of different sizes into the folders train and test."""
    random = np.random.default_rng(0)
    for c in range(6):
        place = tmp_path / "images" / ("train" if c < 4 else "test") / f"class {c}"
        place.mkdir(parents=True)
        for i in range(3):
            pixels = random.integers(0, 256, (24 + 7 * i, 40 - 5 * c, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{i}.png")
    return tmp_path / "images"


def make(folder: Path, **options) -> FileDataset:
    return image_folder(str(folder), **{"resize": 20, "crop": 16} | options)


def cached(folder: Path, **options) -> FileDataset:
    return make(folder, cache=str(folder.parent / "cache"), **options)


def packs(folder: Path) -> list[Path]:
    return sorted(
        entry for entry in (folder.parent / "cache").iterdir() if not entry.name.startswith(".")
    )


@pytest.mark.parametrize("square", [True, False])
@pytest.mark.parametrize("train_crop", ["resized", "random"])
def test_a_cache_changes_no_bit(folder, square, train_crop):
    options = {"square": square, "train_crop": train_crop}
    plain, made, again = (
        make(folder, **options),
        cached(folder, **options),
        cached(folder, **options),
    )
    for seeds in (None, SEEDS):
        expected = plain.train.load(ROWS, seeds)
        for dataset in (made, again):
            torch.testing.assert_close(dataset.train.load(ROWS, seeds), expected, rtol=0, atol=0)
    np.testing.assert_array_equal(made.test.picture(5), plain.test.picture(5))


@pytest.mark.skipif(os.name != "posix", reason="only POSIX file names can hold any bytes")
def test_a_name_that_is_not_utf8_is_cached(folder):
    image = folder / "train" / "class 0" / "0.png"
    image.rename(image.with_name(os.fsdecode(b"caf\xe9.png")))
    assert torch.equal(cached(folder).train.load(ROWS), make(folder).train.load(ROWS))


def test_a_cache_decodes_once_and_pickled_splits_do_not_contain_the_pixels(folder, monkeypatch):
    cached(folder)
    assert len(packs(folder)) == 1
    monkeypatch.setattr(Preparation, "load_resized", None)  # decoding now fails
    again = cached(folder)
    again.train.load(np.arange(12))
    assert len(packs(folder)) == 1
    sent = pickle.dumps(again.train)
    assert len(sent) < 5_000  # the pixels are 12 × 1,200 bytes and more
    received = pickle.loads(sent)
    torch.testing.assert_close(
        received.load(ROWS, SEEDS), again.train.load(ROWS, SEEDS), rtol=0, atol=0
    )
    assert not [
        entry for entry in (folder.parent / "cache").iterdir() if entry.name.endswith(".partial")
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: make(folder) and {"resize": 22},
        lambda folder: {"square": True},
        lambda folder: os.utime(folder / "test" / "class 4" / "1.png", ns=(1, 1)) or {},
        lambda folder: (folder / "test" / "class 4" / "1.png").unlink() or {},
        lambda folder: (folder / "test" / "class 4").rename(folder / "test" / "class 9") and {},
    ],
    ids=["resize", "square", "time", "files", "names"],
)
def test_a_change_of_the_pixels_creates_another_pack(folder, change):
    cached(folder)
    cached(folder, **change(folder))
    assert len(packs(folder)) == 2


def test_options_and_folders_that_keep_the_pixels_share_a_pack(folder):
    cached(folder)
    cached(folder, crop=8, flip=0.0, normalize="caffe", on_bad_image="skip")
    assert len(packs(folder)) == 1
    moved = folder.parent / "moved"
    folder.rename(moved)
    cached(moved)
    assert len(packs(moved)) == 1


def test_concurrent_threads_create_a_pack_once(folder, monkeypatch):
    calls = []
    load_resized = Preparation.load_resized

    def counted(self, file):
        calls.append(file)
        return load_resized(self, file)

    monkeypatch.setattr(Preparation, "load_resized", counted)
    threads = [threading.Thread(target=cached, args=(folder,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 18
    assert len(packs(folder)) == 1


def test_an_interrupted_pack_is_never_used(folder, monkeypatch):
    load_resized = Preparation.load_resized

    def fails_on_the_last(self, file):
        if file.match("class 5/2.png"):
            raise KeyboardInterrupt
        return load_resized(self, file)

    with monkeypatch.context() as patch:
        patch.setattr(Preparation, "load_resized", fails_on_the_last)
        with pytest.raises(KeyboardInterrupt):
            cached(folder)
    assert packs(folder) == []
    torch.testing.assert_close(
        cached(folder).test.load(ROWS), make(folder).test.load(ROWS), rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ["pixels", "index.npz", "bad.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_damaged_pack_is_named(folder, name, damage):
    cached(folder)
    (pack,) = packs(folder)
    content = bytearray((pack / name).read_bytes())
    if damage == "missing":
        (pack / name).unlink()
    elif damage == "cut":
        (pack / name).write_bytes(content[: len(content) // 2])
    else:
        for place in range(0, len(content), 50):
            content[place] ^= 1
        (pack / name).write_bytes(content)
    message = r"the image cache .* is damaged \(.*\); remove this folder to create it again"
    with pytest.raises(DmlError, match=message):
        cached(folder).train.load(np.arange(12))


def test_a_cache_that_cannot_be_written_says_how_big_it_is(folder):
    (folder.parent / "cache").write_text("a file")
    message = r"can't write the image cache .*: .*18 images of 20 pixels take about 1 MB"
    with pytest.raises(DmlError, match=message):
        cached(folder)


@pytest.fixture
def spoiled(folder: Path) -> Path:
    """Empty a file, truncate a file, and add a class with a single file, which is not an image."""
    (folder / "train" / "class 1" / "1.png").write_bytes(b"")
    intact = (folder / "train" / "class 2" / "2.png").read_bytes()
    (folder / "train" / "class 2" / "2.png").write_bytes(intact[: len(intact) // 2])
    (folder / "test" / "lost").mkdir()
    (folder / "test" / "lost" / "only.jpg").write_text("no picture")
    return folder


def test_bad_images_are_skipped_counted_and_logged_with_and_without_a_cache(spoiled, caplog):
    images = []
    for create in (make, cached):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="dml_train.data"):
            dataset = create(spoiled, on_bad_image="skip")
        assert (len(dataset.train), len(dataset.test)) == (10, 6)
        assert [*dataset.train.labels] == [0, 0, 0, 1, 1, 2, 2, 3, 3, 3]
        assert dataset.test.class_names == ("class 4", "class 5")
        (record,) = caplog.records
        message = record.getMessage()
        start = "omitted 3 of 19 images that can't be decoded, and 1 classes without other images:"
        assert message.startswith(start)
        for name in ("1.png: it is empty", "2.png: ", "only.jpg: not an image"):
            assert name in message
        images.append(dataset.train.load(np.arange(10)))
    assert torch.equal(*images)


def test_bad_images_are_named_unless_skipped(spoiled):
    for read in (make, cached):  # `make` checks headers and ends; `cached` decodes
        message = r"(?s)only\.jpg.*1\.png.*2\.png.*3 files are bad in total.*on_bad_image = 'skip'"
        with pytest.raises(DmlError, match=message):
            read(spoiled)
    cached(spoiled, on_bad_image="skip")
    with pytest.raises(DmlError, match="3 files are bad in total"):
        cached(spoiled)  # the pack lists bad files


def test_a_part_without_any_good_image_is_refused(folder):
    for file in (folder / "test").rglob("*.png"):
        file.write_bytes(b"")
    message = r"none of the test images can be decoded, e\.g\. can't read the image"
    with pytest.raises(DmlError, match=message):
        make(folder, on_bad_image="skip")


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_missing_file_is_never_skipped(folder, monkeypatch, with_cache):
    (folder / "test" / "class 4" / "gone.png").symlink_to("nowhere")
    monkeypatch.setattr(Path, "is_file", lambda path: path.suffix == ".png")
    with pytest.raises(DmlError, match=r"can't read the image .*gone\.png"):
        (cached if with_cache else make)(folder, on_bad_image="skip")
