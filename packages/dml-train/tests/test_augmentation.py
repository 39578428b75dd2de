"""Augmentations by name: torchvision's images, bits that depend only on the image and the seed, and
clear errors.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2
from train_support.photo_world import photo_document, write_photos

from dml_core import DmlError, ShuffledSampler
from dml_core import registry as installed
from dml_train.data.array_split import ArraySplit, Jitter
from dml_train.data.batches import StepBatches, load_ahead
from dml_train.data.factories import image_folder
from dml_train.data.prepare import NORMALISATIONS
from dml_train.recipe.checking import parse
from dml_train.seeds import row_seeds
from dml_train.training.run import check_recipe

STEPS = {
    "ColorJitter": {"name": "ColorJitter", "brightness": 0.4, "hue": 0.1},
    "RandAugment": "RandAugment",
    "TrivialAugmentWide": {"name": "TrivialAugmentWide", "interpolation": "bilinear"},
    "AutoAugment": {"name": "AutoAugment", "policy": "cifar10"},
    "RandomErasing": {"name": "RandomErasing", "p": 0.9, "value": "random"},
    "GaussianBlur": {"name": "GaussianBlur", "kernel_size": 3},
    "RandomGrayscale": {"name": "RandomGrayscale", "p": 0.5},
    "RandomApply": {
        "name": "RandomApply",
        "transforms": [{"name": "ElasticTransform", "sigma": 2.0}],
    },
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), classes=4, each=4)


def split_of(photos, *names, **options):
    options = {"resize": 24, "crop": 20, "augment": [STEPS[name] for name in names]} | options
    return image_folder(str(photos), **options).train


def batches(split, rank=0, world_size=1):
    return StepBatches(split, ShuffledSampler(split.labels, 4, seed=1), 7, rank, world_size)


@pytest.mark.parametrize("names", [*([name] for name in STEPS), [*STEPS]], ids=[*STEPS, "all"])
def test_bits_depend_only_on_the_image_and_the_seed(photos, names):
    """Bits don't depend on the batch, on ranks or on a resumption; torch's generator is not
    advanced.
    """
    split = split_of(photos, *names)
    before = torch.random.get_rng_state()
    whole = [batches(split)[step].images for step in range(4)]
    assert torch.equal(torch.random.get_rng_state(), before)
    resumed = batches(split)
    torch.rand(3)
    assert torch.equal(resumed[3].images, whole[3])
    of_ranks = [batches(split, rank, 2)[2].images for rank in range(2)]
    assert torch.equal(torch.cat(of_ranks), whole[2])
    plain = [batches(split_of(photos))[step].images for step in range(4)]
    assert not torch.equal(torch.cat(whole), torch.cat(plain))
    seeds = np.array([3, 4], np.uint64)
    one, other = split.load(np.array([5, 5]), seeds)
    assert not torch.equal(one, other)
    assert torch.equal(split.load(np.array([1, 5, 2]), np.array([9, 3, 8], np.uint64))[1], one)
    assert torch.equal(
        split.load(np.array([5])), split_of(photos).load(np.array([5]))
    )  # evaluation


def test_loader_processes_give_the_same_bits(photos):
    source = batches(split_of(photos, *STEPS))
    for step, loaded in enumerate(load_ahead(source, range(4), 2, pin=False)):
        assert torch.equal(loaded.images, source[step].images)


def test_the_images_are_those_of_torchvision(photos):
    """The reference applies the classes to the crop, then normalises, then erases to 0, the mean
    colour.
    """
    options = {"train_crop": "center", "flip": 0.0}
    erasing = {"name": "RandomErasing", "p": 1.0}
    jitter = STEPS["ColorJitter"]
    crop = torch.from_numpy(split_of(photos).picture(2)).permute(2, 0, 1)
    seed = 12345678901234567890
    torch.manual_seed(seed >> 1)
    widely = v2.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)
    changed = widely(v2.ColorJitter(brightness=0.4, hue=0.1)(crop))
    means = NORMALISATIONS["imagenet"]
    expected = (
        changed * torch.tensor(means.scale)[:, None, None]
        + torch.tensor(means.offset)[:, None, None]
    )
    split = split_of(photos, **options, augment=[jitter, STEPS["TrivialAugmentWide"]])
    loaded = split.load(np.array([2]), np.array([seed], np.uint64))[0]
    torch.testing.assert_close(
        loaded, expected, rtol=0, atol=1e-6
    )  # the reference may fuse the multiplication
    split = split_of(photos, **options, augment=[erasing, jitter, STEPS["TrivialAugmentWide"]])
    erased = split.load(np.array([2]), np.array([seed], np.uint64))[0]
    zero = (erased == 0).all(dim=0)
    assert 0 < zero.sum() < zero.numel()
    assert torch.equal(torch.where(zero, 0, loaded), erased)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "ColourJitter",
            r"unknown augmentation 'ColourJitter'; did you mean 'ColorJitter'\? expected a class "
            r"of",
        ),
        ({"p": 0.5}, "unknown augmentation ''; expected a class of torchvision"),
        (
            {"name": "RandomErasing", "q": 1},
            r"augmentation 'RandomErasing' has no option 'q'.* options: p, scale, ratio, value, "
            r"inplace",
        ),
        (
            {"name": "ColorJitter", "hue": 3.0},
            "augmentation 'ColorJitter': hue values should be between",
        ),
        (
            {"name": "TrivialAugmentWide", "interpolation": "cubic"},
            "'cubic' is not a valid InterpolationMode",
        ),
        (
            {"name": "Resize", "size": 8},
            r"turns an image of shape \(3, 20, 20\).* expected the same shape",
        ),
        ({"name": "ConvertImageDtype"}, r"into .*torch\.float32; expected the same shape and type"),
        ("ToPILImage", "into Image, ; expected the same shape"),
        (
            {"name": "MixUp", "num_classes": 3},
            "the augmentation {'name': 'MixUp', .* failed: ValueError",
        ),
    ],
)
def test_a_wrong_augmentation_is_refused_before_images_are_read(tmp_path, step, message):
    table = {
        "name": "image-folder",
        "root": str(tmp_path / "none"),
        "resize": 24,
        "crop": 20,
        "augment": [step],
    }
    with pytest.raises(DmlError, match=message):
        installed().build("datasets", table, {"seed": 0})


def test_views_are_different_images_with_one_label_in_adjacent_rows_on_any_rank(photos):
    def load(rank=0, world_size=1):
        return StepBatches(
            split, ShuffledSampler(split.labels, 4, seed=1), 7, rank, world_size, views=3
        )[1]

    split = split_of(photos)
    items = batches(split).indices(1)
    whole = load()
    assert torch.equal(whole.labels, torch.from_numpy(split.labels[items]).repeat_interleave(3))
    seeds = row_seeds(7, 1, np.arange(12))
    assert torch.equal(whole.images, split.load(np.repeat(items, 3), seeds))
    assert len({image.numpy().tobytes() for image in whole.images}) == 12
    parts = [load(rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
    assert all(torch.equal(part.labels, whole.labels) for part in parts)


def test_views_of_images_that_are_not_augmented_are_refused(photos, registry, quiet):
    document = photo_document(photos)
    document["training"]["views"] = 2
    check_recipe(parse(document, registry), registry=registry, console=quiet)
    document["dataset"] |= {"train_crop": "center", "flip": 0.0}
    with pytest.raises(
        DmlError,
        match=r"views is 2, but the data set 'image-folder' gives identical views.*augment",
    ):
        check_recipe(parse(document, registry), registry=registry, console=quiet)


@pytest.mark.parametrize("normalize", ["imagenet", "caffe", "none"])
def test_the_picture_of_an_augmented_image_is_the_input_before_the_normalisation(photos, normalize):
    names = ("ColorJitter", "RandAugment")
    plain = split_of(photos, *names, normalize="none").load(
        np.array([3]), np.array([8], np.uint64)
    )[0]
    shown = split_of(photos, *names, normalize=normalize).augmented_picture(3, 8)
    assert torch.equal(
        torch.from_numpy(shown), (255 * plain).round().to(torch.uint8).permute(1, 2, 0)
    )


def test_the_picture_of_an_augmented_drawing_is_the_input_as_dark_ink():
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 9), dtype=np.uint8)
    split = ArraySplit(images, np.arange(2), ["a", "b"], Jitter())
    ink = split.load(np.array([1]), np.array([5], np.uint64))[0, 0].numpy()
    shown = split.augmented_picture(1, 5)
    assert (shown.shape, shown.dtype) == ((8, 9, 3), np.uint8)
    assert np.abs(shown - 255 * (1 - ink[:, :, None])).max() <= 0.5 + 1e-4  # rounded
    assert not np.array_equal(shown, split.picture(1))
