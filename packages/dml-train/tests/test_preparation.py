"""From images to the network's input: the crops of evaluation and of training, and
normalisation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from dml_train.data.file_dataset import FileSplit
from dml_train.data.preparation import Preparation, choose_crop_size


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """Write smooth images of different sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    for i, (width, height) in enumerate([(60, 40), (40, 60), (48, 48), (200, 24), (31, 33)]):
        random = np.random.default_rng(i)
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


def seeds(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.uint64)


def split_of(files: list[Path], **options) -> FileSplit:
    return FileSplit(
        {"a": files[:2], "b": files[2:]}, Preparation(**{"resize": 20, "crop": 16} | options)
    )


@pytest.mark.parametrize(
    ("square", "interpolation"), [(False, "bilinear"), (True, "bilinear"), (False, "bicubic")]
)
def test_evaluation_crops_the_centre_of_the_resized_image(files, square, interpolation):
    split = split_of(files, square=square, interpolation=interpolation)
    for i, file in enumerate(files):
        image = Image.open(file)
        factor = 20 / min(image.size)
        size = (20, 20) if square else tuple(max(20, round(side * factor)) for side in image.size)
        image = image.resize(size, Image.Resampling[interpolation.upper()])
        left, top = ((side - 16) // 2 for side in size)
        expected = np.asarray(image.crop((left, top, left + 16, top + 16))).astype(int)
        # Pillow and torch round the weights of integer arithmetic differently.
        assert np.abs(split.picture(i) - expected).max() <= 1


def test_height_and_width_can_differ(files):
    split = split_of(files, resize=[24, 12], crop=[20, 10])
    for i, file in enumerate(files):
        image = Image.open(file).resize((12, 24), Image.Resampling.BILINEAR)
        expected = np.asarray(image.crop((1, 2, 11, 22))).astype(int)
        assert np.abs(split.picture(i) - expected).max() <= 1
    assert split.preparation.input_shape == split.load(np.array([0])).shape[1:] == (3, 20, 10)
    for train_crop in ("resized", "random", "center"):
        augment = [{"name": "RandomCrop", "size": [20, 10], "padding": 2}, "RandomErasing"]
        split = split_of(
            files, resize=[24, 12], crop=[20, 10], train_crop=train_crop, augment=augment
        )
        assert split.load(np.array([0, 3]), seeds(1, 2)).shape == (2, 3, 20, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": [20, 21]}, r"crop is \[20, 21\] and resize is 20; expected 1 <= crop <= resize"),
        ({"resize": [30, 10], "crop": 16}, r"crop is 16 and resize is \[30, 10\]"),
        (
            {"resize": [20, 20, 3]},
            r"resize is \[20, 20, 3\]; expected a number, or height and width",
        ),
        ({"resize": [20, 20], "square": True}, "square is true; expected one of the two"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preparation(**{"resize": 20, "crop": 16} | options)


@pytest.mark.parametrize(
    ("normalize", "expected"),
    [
        ("none", lambda rgb: rgb / 255),
        ("imagenet", lambda rgb: (rgb / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]),
        ("half", lambda rgb: rgb / 127.5 - 1),
        (
            "clip",
            lambda rgb: (
                (rgb / 255 - [0.48145466, 0.4578275, 0.40821073])
                / [0.26862954, 0.26130258, 0.27577711]
            ),
        ),
        ("caffe", lambda rgb: rgb[..., ::-1] - [104, 117, 128]),
    ],
)
def test_pixels_are_normalised_as_the_weights_expect(files, normalize, expected):
    split = split_of(files, normalize=normalize)
    given_rgb = split.picture(2).astype(np.float64)
    # Allow for rounding a float32 product and sum of values up to 255.
    np.testing.assert_allclose(
        split.load(np.array([2]))[0].permute(1, 2, 0).numpy(),
        expected(given_rgb),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("train_crop", ["resized", "random", "center"])
def test_a_training_row_depends_on_its_own_image_and_seed_alone(files, train_crop):
    split = split_of(files, train_crop=train_crop)
    indices, of_rows = np.array([3, 1, 3, 4]), seeds(11, 12, 14, 11)
    together = split.load(indices, of_rows)
    assert together.shape == (4, 3, 16, 16)
    assert together.dtype == torch.float32
    assert together.is_contiguous()
    for row in range(4):
        alone = split.load(indices[row : row + 1], of_rows[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=0)
    if train_crop != "center":
        assert not torch.equal(together[0], together[2])  # the same image with different seeds


def test_flip_is_the_probability_of_mirroring(files):
    plain, mirrored, sometimes = (
        split_of(files, flip=flip, train_crop="center").load(
            np.zeros(400, np.int64), np.arange(400, dtype=np.uint64)
        )
        for flip in (0.0, 1.0, 0.25)
    )
    torch.testing.assert_close(mirrored, plain.flip(-1), rtol=0, atol=0)
    turned = (sometimes == mirrored).flatten(1).all(1).sum().item()
    assert (
        60 <= turned <= 140
    )  # 100 expected; the bounds are more than four standard deviations of 8.7


def test_random_crops_reach_every_position_of_the_resized_image(files):
    preparation = Preparation(
        resize=20, crop=16, train_crop="random", flip=0.0, normalize="none", square=True
    )
    image = preparation.load_resized(files[0])
    windows = image.unfold(1, 16, 1).unfold(2, 16, 1).permute(1, 2, 0, 3, 4).reshape(25, 3, 16, 16)
    batch = preparation.make_batch([image] * 500, np.arange(500, dtype=np.uint64))
    where = ((batch * 255).round()[:, None] == windows[None]).flatten(2).all(2)
    assert (where.sum(1) == 1).all()
    counts = where.sum(0)  # 20 expected per position, standard deviation 4.4
    assert counts.min() >= 2
    assert counts.max() <= 42


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**64 - 1),
    height=st.integers(16, 90),
    width=st.integers(16, 90),
    min_area=st.floats(0.01, 1.0),
)
def test_a_resized_crop_of_one_colour_is_that_colour(seed, height, width, min_area):
    preparation = Preparation(resize=16, crop=16, min_area=min_area, normalize="none")
    image = torch.full((3, height, width), 200, dtype=torch.uint8)
    batch = preparation.make_batch([image], seeds(seed))
    torch.testing.assert_close(batch, torch.full((1, 3, 16, 16), 200 / 255))


def test_resized_crops_are_distributed_like_those_of_torchvision():
    draws = np.random.default_rng(0).random((4000, 10, 2))
    ours = np.array([choose_crop_size(256, 256, 0.5, tries) for tries in draws], dtype=np.float64)
    torch.manual_seed(0)
    crop = v2.RandomResizedCrop(224, scale=(0.5, 1.0))
    image = torch.zeros(3, 256, 256, dtype=torch.uint8)
    theirs = np.array(
        [[*map(crop.make_params([image]).get, ("height", "width"))] for _ in range(4000)]
    )
    for measure in (lambda hw: hw.prod(1) / 256**2, lambda hw: np.log(hw[:, 1] / hw[:, 0])):
        a, b = measure(ours), measure(theirs)
        error = np.sqrt((a.var() + b.var()) / 4000)
        assert abs(a.mean() - b.mean()) < 5 * error
        np.testing.assert_allclose(
            np.quantile(a, [0.1, 0.5, 0.9]), np.quantile(b, [0.1, 0.5, 0.9]), atol=0.03
        )


def test_a_very_long_image_gets_the_largest_crop_of_an_allowed_ratio():
    assert choose_crop_size(20, 400, 1.0, np.random.default_rng(0).random((10, 2))) == (20, 27)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0}, "expected 1 <= crop <= resize"),
        ({"crop": 30, "resize": 20}, "crop is 30 and resize is 20"),
        ({"min_area": 0.0}, r"expected a share in \(0, 1\]"),
        ({"flip": 1.5}, r"expected a probability in \[0, 1\]"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preparation(**options)
