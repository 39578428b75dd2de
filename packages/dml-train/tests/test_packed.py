"""The cache of decoded images, and files that can't be decoded: neither may change a number in silence."""

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
from dml_train.data import FileDataset, FileDatasetFactory, Preparation, packed, read_image_folder
from dml_train.data.packed import PackedImages

image_folder = FileDatasetFactory(read_image_folder)
SEEDS = np.array([5, 6, 7], dtype=np.uint64)
ROWS = np.array([4, 0, 4])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six classes of three pictures in many shapes, train and test apart."""
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
    return sorted(entry for entry in (folder.parent / "cache").iterdir() if not entry.name.startswith("."))


# --- the cache ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("square", [True, False])
@pytest.mark.parametrize("train_crop", ["resized", "random"])
def test_a_cache_changes_no_bit(folder, square, train_crop):
    options = {"square": square, "train_crop": train_crop}
    plain, made, again = make(folder, **options), cached(folder, **options), cached(folder, **options)
    for seeds in (None, SEEDS):
        expected = plain.train.load(ROWS, seeds)
        for dataset in (made, again):
            torch.testing.assert_close(dataset.train.load(ROWS, seeds), expected, rtol=0, atol=0)
    np.testing.assert_array_equal(made.test.picture(5), plain.test.picture(5))


def test_a_cache_decodes_once(folder, monkeypatch):
    cached(folder)
    assert len(packs(folder)) == 1
    monkeypatch.setattr(Preparation, "resized", None)  # whoever decodes now fails
    again = cached(folder)
    again.train.load(np.arange(12))
    assert len(packs(folder)) == 1
    assert not [entry for entry in (folder.parent / "cache").iterdir() if entry.name.endswith(".partial")]


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
def test_what_the_pixels_depend_on_makes_another_pack(folder, change):
    cached(folder)
    cached(folder, **change(folder))
    assert len(packs(folder)) == 2


def test_what_they_do_not_depend_on_uses_the_same_pack(folder):
    cached(folder)
    cached(folder, crop=8, flip=0.0, normalize="caffe", on_bad_image="skip")
    assert len(packs(folder)) == 1
    moved = folder.parent / "moved"
    folder.rename(moved)
    cached(moved)
    assert len(packs(moved)) == 1


def test_loader_processes_map_the_pack_and_are_not_sent_it(folder):
    dataset = cached(folder)
    sent = pickle.dumps(dataset.train)
    assert len(sent) < 5_000  # the pixels are 12 × 1,200 bytes and more
    received = pickle.loads(sent)
    torch.testing.assert_close(received.load(ROWS, SEEDS), dataset.train.load(ROWS, SEEDS), rtol=0, atol=0)


def test_threads_that_want_one_pack_make_it_once(folder, monkeypatch):
    calls = []
    resized = Preparation.resized

    def counted(self, file):
        calls.append(file)
        return resized(self, file)

    monkeypatch.setattr(Preparation, "resized", counted)
    threads = [threading.Thread(target=cached, args=(folder,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 18
    assert len(packs(folder)) == 1


def test_a_pack_that_was_begun_is_never_taken_for_a_whole_one(folder, monkeypatch):
    resized = Preparation.resized

    def fails_on_the_last(self, file):
        if file.match("class 5/2.png"):
            raise KeyboardInterrupt
        return resized(self, file)

    with monkeypatch.context() as patch:
        patch.setattr(Preparation, "resized", fails_on_the_last)
        with pytest.raises(KeyboardInterrupt):
            cached(folder)
    assert packs(folder) == []
    torch.testing.assert_close(cached(folder).test.load(ROWS), make(folder).test.load(ROWS), rtol=0, atol=0)


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
    with pytest.raises(
        DmlError, match=r"the cache of images .* is damaged \(.*\); remove it, it is made anew"
    ):
        cached(folder).train.load(np.arange(12))


def test_a_cache_that_cannot_be_written_says_how_big_it_is(folder):
    (folder.parent / "cache").write_text("a file")
    with pytest.raises(
        DmlError, match=r"can't write the cache of images .*: .*18 images of 20 pixels take about 0\.001 GB"
    ):
        cached(folder)


def test_an_empty_list_is_an_empty_pack(tmp_path):
    pack = packed.packed([], Preparation(), tmp_path / "cache")
    assert (len(pack), pack.bad) == (0, {})
    assert isinstance(pickle.loads(pickle.dumps(pack)), PackedImages)


# --- bad images -----------------------------------------------------------------------------------------------


@pytest.fixture
def spoiled(folder: Path) -> Path:
    """Two files that can't be decoded: one has no header, the other has nothing after it; and a class of its own."""
    (folder / "train" / "class 1" / "1.png").write_bytes(b"")
    whole = (folder / "train" / "class 2" / "2.png").read_bytes()
    (folder / "train" / "class 2" / "2.png").write_bytes(whole[: len(whole) // 2])
    (folder / "test" / "lost").mkdir()
    (folder / "test" / "lost" / "only.jpg").write_text("no picture")
    return folder


@pytest.mark.parametrize("with_cache", [False, True])
def test_bad_images_are_skipped_counted_and_logged(spoiled, caplog, with_cache):
    with caplog.at_level(logging.WARNING, logger="dml_train.data"):
        dataset = (cached if with_cache else make)(spoiled, on_bad_image="skip")
    assert (len(dataset.train), len(dataset.test)) == (10, 6)
    assert [*dataset.train.labels] == [0, 0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert dataset.test.class_names == ("class 4", "class 5")
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith(
        "left out 3 of 19 images and 1 classes without any other, which can't be decoded:"
    )
    for name in ("1.png: it is empty", "2.png: ", "only.jpg: not an image"):
        assert name in message
    assert dataset.train.load(np.arange(10)).shape == (10, 3, 16, 16)


def test_skipping_is_the_same_with_and_without_a_cache(spoiled):
    plain, packed_set = make(spoiled, on_bad_image="skip"), cached(spoiled, on_bad_image="skip")
    assert plain.train.files == packed_set.train.files
    torch.testing.assert_close(
        plain.train.load(np.arange(10)), packed_set.train.load(np.arange(10)), rtol=0, atol=0
    )


def test_without_skipping_the_bad_ones_are_named(spoiled):
    # Without a cache only headers are read; the file that is cut off behind its header shows when it is loaded.
    with pytest.raises(
        DmlError, match=r"(?s)only\.jpg.*1\.png.*2 files are bad in all.*on_bad_image = 'skip'"
    ):
        make(spoiled)
    with pytest.raises(DmlError, match=r"(?s)only\.jpg.*1\.png.*2\.png.*3 files are bad in all"):
        cached(spoiled)
    cached(spoiled, on_bad_image="skip")
    with pytest.raises(DmlError, match="3 files are bad in all"):
        cached(spoiled)  # from the pack, which knows them


def test_a_part_without_any_good_image_is_refused(folder):
    for file in (folder / "test").rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(
        DmlError, match=r"none of the test images can be decoded, e\.g\. can't read the image"
    ):
        make(folder, on_bad_image="skip")


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_file_that_is_gone_is_never_skipped(folder, monkeypatch, with_cache):
    (folder / "test" / "class 4" / "gone.png").symlink_to("nowhere")
    monkeypatch.setattr(Path, "is_file", lambda path: path.suffix == ".png")
    with pytest.raises(DmlError, match=r"can't read the image .*gone\.png"):
        (cached if with_cache else make)(folder, on_bad_image="skip")


def test_another_word_for_bad_images_is_refused(folder):
    with pytest.raises(ValueError, match="on_bad_image is 'ignore'; expected one of: error, skip"):
        make(folder, on_bad_image="ignore")
