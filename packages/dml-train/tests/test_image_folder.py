"""Folders of images, in all the ways in which images are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dml_core import DmlError
from dml_train.data import ImageFolder
from dml_train.data.image_folder import DEVIATION, MEAN, read_image


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten classes of three images; a hidden folder, an empty one and a stray file beside them."""
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
    return ImageFolder(str(root), size=16, resize=20, **options)


# --- classes --------------------------------------------------------------------------------------------------


def test_classes_are_split_and_none_is_in_both_parts(folder):
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
def test_each_part_has_a_class(folder, fraction):
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


def test_queries_have_a_gallery_of_their_own(parts):
    dataset = small(parts(train="ab", query="cd", gallery="dce"))
    assert dataset.test.class_names == ("c", "d")
    assert dataset.gallery.class_names == ("c", "d", "e")
    assert dataset.gallery.load(np.array([2])).shape == (1, 3, 16, 16)


def test_queries_without_any_match_are_refused(parts):
    with pytest.raises(DmlError, match=r"no class of .*query is in .*gallery \(e\.g\. 'c' and 'e'\)"):
        small(parts(train="ab", query="cd", gallery="ef"))


def test_training_classes_in_the_gallery_are_refused(parts):
    with pytest.raises(DmlError, match=r"class 'a' is in .*train and in .*gallery"):
        small(parts(train="ab", query="c", gallery="ac"))


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(DmlError, match="nowhere is not a folder; expected ROOT/CLASS/IMAGE"):
        small(tmp_path / "nowhere")


def test_a_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(DmlError, match="holds 0 folders with images"):
        small(tmp_path)


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"size": 30, "resize": 20}, {"crop": 0.0}, {"flip": 1.5}, {"train_fraction": 1.0}],
    ids=str,
)
def test_numbers_out_of_range_are_refused(folder, options):
    with pytest.raises(ValueError, match="expected"):
        ImageFolder(str(folder), **options)


# --- images ---------------------------------------------------------------------------------------------------


def test_evaluation_sees_the_middle(folder):
    split = small(folder).test
    image = Image.open(split.files[4])
    width, height = image.size
    image = image.resize((round(width * 20 / height), 20), Image.Resampling.BILINEAR)
    left = (image.width - 16) // 2
    expected = np.asarray(image.crop((left, 2, left + 16, 18)))
    np.testing.assert_array_equal(split.picture(4), expected)
    normalised = (expected / 255 - MEAN) / DEVIATION
    # One rounding each in division, subtraction and division, of values up to 3.
    np.testing.assert_allclose(split.load(np.array([4]))[0].permute(1, 2, 0).numpy(), normalised, atol=1e-5)


def test_a_training_row_depends_on_its_own_seed_alone(folder):
    split = small(folder).train
    indices, seeds = np.array([3, 1, 3, 7]), np.array([11, 12, 13, 11], dtype=np.uint64)
    together = split.load(indices, seeds)
    assert together.shape == (4, 3, 16, 16)
    for row in range(4):
        torch.testing.assert_close(
            together[row : row + 1], split.load(indices[row : row + 1], seeds[row : row + 1]), rtol=0, atol=0
        )
    assert not torch.equal(together[0], together[2])  # one image, two seeds


def test_mirroring_happens_as_often_as_asked(folder):
    seeds = np.array([5], dtype=np.uint64)
    plain, mirrored = (small(folder, flip=f).train.load(np.array([2]), seeds) for f in (0.0, 1.0))
    torch.testing.assert_close(mirrored, plain.flip(-1), rtol=0, atol=0)


def test_a_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: 90 degrees clockwise to show
    image = Image.new("RGB", (40, 20), "red")
    image.paste("blue", (0, 0, 20, 20))
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    upright = read_image(tmp_path / "a.jpg")
    assert upright.size == (20, 40)
    assert upright.getpixel((10, 5))[2] > 200  # blue is on top
    assert upright.getpixel((10, 35))[0] > 200


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("1", "png"), ("L", "jpg"), ("CMYK", "jpg"), ("P", "gif"), ("RGB", "webp"), ("L", "bmp")],
)
def test_every_mode_becomes_rgb(tmp_path, mode, suffix):
    file = tmp_path / f"a.{suffix}"
    Image.new("RGB", (12, 9), (255, 255, 255)).convert(mode).save(file)
    image = read_image(file)
    assert (image.mode, image.size) == ("RGB", (12, 9))
    assert min(image.getpixel((6, 4))) >= 250


def test_sixteen_bits_are_scaled_and_not_cut(tmp_path):
    Image.fromarray(np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)).save(tmp_path / "a.png")
    np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "a.png"))[:, :, 0], [[0, 100], [200, 255]])


def test_what_is_transparent_is_white(tmp_path):
    picture = Image.new("LA", (2, 1), (0, 0))
    picture.putpixel((1, 0), (0, 255))
    picture.save(tmp_path / "a.png")
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([0, 0, 0, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "b.png", transparency=0)
    for name in ("a.png", "b.png"):
        np.testing.assert_array_equal(np.asarray(read_image(tmp_path / name))[0], [[255] * 3, [0] * 3])


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x89PNG\r\n\x1a\n\x00\x00"], ids=["empty", "text", "torn"]
)
def test_a_file_that_is_no_image_is_named_at_once(folder, content):
    (folder / "class 3" / "bad.png").write_bytes(content)
    with pytest.raises(DmlError, match=r"can't read the image .*class 3/bad\.png: .*repair or remove"):
        small(folder)


def test_a_truncated_image_is_named_when_it_is_loaded(folder):
    file = folder / "class 3" / "torn.jpg"
    noise(60, 60).save(file)
    file.write_bytes(file.read_bytes()[:-400])
    dataset = small(folder)
    split = dataset.train if "class 3" in dataset.train.class_names else dataset.test
    with pytest.raises(DmlError, match=r"can't read the image .*torn\.jpg"):
        split.load(np.array([split.files.index(file)]))
