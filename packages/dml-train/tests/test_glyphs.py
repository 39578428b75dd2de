"""The built-in data set, and the augmentation of images in memory."""

from __future__ import annotations

import math
from dataclasses import astuple

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core import DmlError
from dml_train.data.array_split import Jitter, draw_uniforms
from dml_train.data.fonts import UNDRAWN
from dml_train.data.glyphs import MIN_FACES, SIZE, Glyphs, draw_glyphs

SEEDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def glyphs():
    return Glyphs()


@pytest.fixture(scope="module")
def few():
    return Glyphs(max_classes=20)


def test_the_size_is_the_documented_one_and_every_class_has_enough_faces(glyphs):
    classes = len(glyphs.train.class_names) + len(glyphs.test.class_names)
    images = len(glyphs.train) + len(glyphs.test)
    assert classes == pytest.approx(3400, rel=0.1)
    assert images == pytest.approx(39000, rel=0.1)
    assert len(glyphs.train.class_names) - len(glyphs.test.class_names) in (0, 1)
    for split in (glyphs.train, glyphs.test):
        counts = np.bincount(split.labels)
        assert len(counts) == len(split.class_names)
        assert counts.min() >= MIN_FACES
        assert split.labels.dtype == np.int64


def test_characters_that_look_the_same_are_one_class_of_one_half(glyphs):
    each = [*glyphs.train.class_names, *glyphs.test.class_names]
    assert len(set(each)) == len(each)
    names = " ".join(each)
    assert "U+0041 LATIN CAPITAL LETTER A" in names
    assert "U+0391 GREEK CAPITAL LETTER ALPHA" not in names
    assert "U+0410 CYRILLIC CAPITAL LETTER A " not in names
    assert "U+0042 LATIN CAPITAL LETTER B" in names


def test_every_picture_has_centred_ink():
    images = draw_glyphs().images
    assert images.dtype == np.uint8
    for ink in (images.any(axis=1), images.any(axis=2)):
        before, after = ink.argmax(axis=1), ink[:, ::-1].argmax(axis=1)
        assert ink.any(axis=1).all()
        assert (np.abs(before - after) <= 1).all()


def test_drawing_twice_gives_identical_pictures(monkeypatch):
    monkeypatch.setattr(
        "dml_train.data.glyphs.UNDRAWN", UNDRAWN | {"Lo", "Sm", "So"}
    )  # to save time
    first, again = (draw_glyphs.__wrapped__(16) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_max_classes_selects_from_all_classes(glyphs, few):
    everything = {*glyphs.train.class_names, *glyphs.test.class_names}
    chosen = [*few.train.class_names, *few.test.class_names]
    assert len(chosen) == len(set(chosen)) == 20
    assert set(chosen) <= everything
    assert (
        len(few.train)
        == (few.train.labels >= 0).sum()
        == len(few.train.load(np.arange(len(few.train))))
    )
    with pytest.raises(ValueError, match="max_classes is 1; expected at least 2"):
        Glyphs(max_classes=1)


def test_missing_fonts_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
    # Later tests need the cached drawings.
    monkeypatch.setattr("dml_train.data.glyphs.draw_glyphs", draw_glyphs.__wrapped__)
    with pytest.raises(DmlError, match=r"no font DejaVuSans.ttf in .*reinstall"):
        Glyphs()


def test_raw_pixels_find_the_class_of_most_images(glyphs):
    queries = np.arange(0, len(glyphs.test), 40)
    pixels = glyphs.test.load(np.arange(len(glyphs.test))).flatten(1)
    pixels = torch.nn.functional.normalize(pixels)
    similarity = pixels[queries] @ pixels.T
    similarity[torch.arange(len(queries)), torch.from_numpy(queries)] = -1.0
    labels = torch.from_numpy(glyphs.test.labels)
    recall = (labels[similarity.argmax(dim=1)] == labels[queries]).double().mean().item()
    # 0.713 over all queries; if every fortieth is used, the standard error is 0.02.
    assert recall == pytest.approx(0.713, abs=0.08)


def test_loading_without_seeds_gives_the_pictures(glyphs):
    indices = np.array([5, 0, 5, 17])
    images = glyphs.train.load(indices)
    assert images.shape == (4, 1, SIZE, SIZE)
    assert images.dtype == torch.float32
    for image, index in zip(images, indices, strict=True):
        picture = glyphs.train.picture(int(index))
        assert picture.shape == (SIZE, SIZE, 3)
        np.testing.assert_array_equal((255 - image[0].numpy() * 255).round(), picture[:, :, 0])


def test_the_test_half_is_never_augmented(glyphs):
    indices = np.arange(8)
    torch.testing.assert_close(
        glyphs.test.load(indices, indices.astype(np.uint64)),
        glyphs.test.load(indices),
        rtol=0,
        atol=0,
    )


@settings(deadline=None, max_examples=25)
@given(seeds=SEEDS, data=st.data())
def test_a_row_depends_on_its_own_seed_alone(few, seeds, data):
    split = few.train
    indices = np.array([data.draw(st.integers(0, len(split) - 1)) for _ in seeds])
    together = split.load(indices, np.array(seeds, dtype=np.uint64))
    for row in range(len(seeds)):
        alone = split.load(indices[row : row + 1], np.array(seeds[row : row + 1], dtype=np.uint64))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=0)


def test_uniforms_are_uniform():
    draws = draw_uniforms(np.arange(50_000, dtype=np.uint64), 4)
    assert draws.shape == (50_000, 4)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    # Standard errors over 50,000 numbers: 0.0013 of a mean, 0.0045 of a correlation; the bounds are
    # five errors.
    np.testing.assert_allclose(draws.mean(axis=0), 0.5, atol=0.0065)
    np.testing.assert_allclose(np.corrcoef(draws.T), np.eye(4), atol=0.0225)
    counts = np.histogram(draws, bins=16, range=(0, 1))[0]
    np.testing.assert_allclose(counts / draws.size, 1 / 16, atol=0.003)


def jitter_by_the_pixel(jitter: Jitter, image: np.ndarray, seed: int) -> np.ndarray:
    """Augment an image using the definition of `Jitter`, pixel by pixel in float64."""
    seeds = np.array([seed], dtype=np.uint64)
    rotation, scale, stretch, shear, _, stroke, fade = (
        2 * draw_uniforms(seeds, 7)[0] - 1
    ) * np.array(astuple(jitter))
    dx, dy = (2 * draw_uniforms(~seeds, 2)[0] - 1) * jitter.shift
    height, width = image.shape
    angle = math.radians(rotation)
    out = np.zeros_like(image)

    def ink(row: int, column: int) -> float:
        return image[row, column] if 0 <= row < height and 0 <= column < width else 0.0

    for row in range(height):
        for column in range(width):
            # Relative to the image's centre; the tests' images are square.
            x, y = column + 0.5 - width / 2, row + 0.5 - height / 2
            turned_x = x * math.cos(angle) - y * math.sin(angle)
            turned_y = x * math.sin(angle) + y * math.cos(angle)
            from_x = (
                math.exp(-scale - stretch / 2) * (turned_x + shear * turned_y)
                + dx
                + width / 2
                - 0.5
            )
            from_y = math.exp(-scale + stretch / 2) * turned_y + dy + height / 2 - 0.5
            left, top = math.floor(from_x), math.floor(from_y)
            right, below = from_x - left, from_y - top
            out[row, column] = (
                (1 - below) * ((1 - right) * ink(top, left) + right * ink(top, left + 1))
                + below * ((1 - right) * ink(top + 1, left) + right * ink(top + 1, left + 1))
            )  # fmt: skip
    image, result = np.pad(out, 1), out.copy()
    for row in range(height):
        for column in range(width):
            around = image[row : row + 3, column : column + 3]
            extreme = around.max() if stroke > 0 else around.min()
            result[row, column] += abs(stroke) * (extreme - result[row, column])
    return result * (1 - abs(fade))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**64 - 1))
def test_the_batched_augmentation_equals_its_definition_by_the_pixel(seed):
    jitter = Jitter(rotation=20, scale=0.3, stretch=0.3, shear=0.4, shift=3, stroke=0.8, fade=0.5)
    image = np.random.default_rng(seed).random((12, 12))
    changed = jitter(
        torch.from_numpy(image.astype(np.float32))[None, None], np.array([seed], dtype=np.uint64)
    )
    # Coordinates in float32 change a bilinear weight by about 12 · 2^-24, and a few such errors add
    # up.
    np.testing.assert_allclose(
        changed[0, 0].numpy(), jitter_by_the_pixel(jitter, image, seed), atol=2e-5
    )


@pytest.mark.parametrize(
    ("name", "bound"), [("rotation", -1.0), ("stroke", 1.5), ("fade", math.nan)]
)
def test_bounds_out_of_range_are_refused(name, bound):
    with pytest.raises(ValueError, match=f"{name} is {bound}; expected"):
        Jitter(**{name: bound})
