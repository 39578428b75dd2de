"""A user's images are prepared like the training images."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from train_support.photo_world import write_photos

from dml_core import DmlError, FileBackedSplit, ImageReadingFactory, registry
from dml_train.data.glyphs import DrawingReader, Glyphs


def factory(name):
    return registry().entry("datasets", name).component.factory


@pytest.mark.parametrize("name", ["image-folder", "csv", "cub", "glyphs"])
def test_the_factories_read_images(name):
    assert isinstance(factory(name), ImageReadingFactory)


@pytest.mark.parametrize("normalize", ["imagenet", "caffe", "none"])
def test_files_are_prepared_like_those_of_the_data_set(tmp_path, normalize):
    root = write_photos(tmp_path / "data")
    options = {"resize": 18, "crop": 16, "square": True, "normalize": normalize}
    dataset = registry().build(
        "datasets", {"name": "image-folder", "root": str(root), **options}, {"seed": 0}
    )
    reader = factory("image-folder").image_reader(root="gone", train_fraction=0.25, **options)
    assert isinstance(dataset.test, FileBackedSplit)
    split, every = reader.of_images(dataset.test.files), np.arange(len(dataset.test))
    images = split.load(every)
    np.testing.assert_array_equal(images.numpy(), dataset.test.load(every).numpy())
    np.testing.assert_array_equal(split.picture(3), dataset.test.picture(3))
    assert reader.in_channels == dataset.in_channels
    assert images.shape[1:] == reader.input_shape
    assert len(split) == len(every)
    steps, pixels = reader.describe(), split.picture(3).astype(np.float64)
    order = ["RGB".index(channel) for channel in steps["channels"].removeprefix("3: ")]
    described = pixels[:, :, order] * steps["scale"] + steps["offset"]
    # Allow for rounding: `images` is float32, computed from numbers up to 255.
    np.testing.assert_allclose(images[3].permute(1, 2, 0).numpy(), described, atol=1e-4)


def test_a_glyph_saved_to_a_file_is_read_back_unchanged(tmp_path):
    glyphs = Glyphs(max_classes=4)
    files = [tmp_path / f"{i}.png" for i in range(len(glyphs.test))]
    for i, file in enumerate(files):
        Image.fromarray(glyphs.test.picture(i)).save(file)
    reader = factory("glyphs").image_reader(max_classes=4, rotation=3.0)
    split, indices = reader.of_images(files), np.arange(len(files))
    np.testing.assert_array_equal(split.load(indices).numpy(), glyphs.test.load(indices).numpy())
    np.testing.assert_array_equal(split.picture(1), glyphs.test.picture(1))
    assert reader.input_shape == (1, 32, 32)


def test_drawings_of_any_shape_are_fitted_into_the_square(tmp_path):
    wide = Image.new("RGBA", (80, 20), (0, 0, 0, 0))  # transparent: white
    wide.paste((10, 10, 10, 255), (20, 0, 60, 20))
    wide.save(tmp_path / "wide.png")
    (ink,) = DrawingReader(16).of_images([tmp_path / "wide.png"]).load(np.array([0]))
    assert ink.shape == (1, 16, 16)
    assert ink[0, 7:9, 6:10].min() > 0.9
    assert ink[0, :6].abs().max() == ink[0, 10:].abs().max() == 0.0
    (tmp_path / "bad.png").write_bytes(b"")
    with pytest.raises(DmlError, match=r"bad\.png: it is empty"):
        DrawingReader(16).of_images([tmp_path / "bad.png"]).load(np.array([0]))
