"""Readers that prepare a user's images for a trained network, without the data set of its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_train.data.decoding import ImageSource, read_image
from dml_train.data.preparation import Preparation
from dml_train.data.prepare import fit_drawing


class PhotographReader:
    """An `ImageReader` for the data sets of image files.

    Args:
        options: those of the recipe's table; options unknown to `Preparation` are ignored.
    """

    in_channels = 3

    def __init__(self, **options: Any) -> None:
        known = {field.name for field in fields(Preparation)}
        self.preparation = Preparation(**{name: value for name, value in options.items() if name in known})
        self.input_shape = (3, self.preparation.crop, self.preparation.crop)

    def of_images(self, images: Sequence[ImageSource]) -> ImageSplit:
        """Return a split of these images, prepared as for evaluation."""
        return ImageSplit(images, self)

    def prepare(self, images: Sequence[ImageSource]) -> Tensor:
        """Prepare images for the network, (N, 3, crop, crop) float32."""
        return self.preparation.make_batch([self.preparation.load_resized(image) for image in images])

    def render(self, image: ImageSource) -> npt.NDArray[np.uint8]:
        """Render the centre of an image, as the network sees it, (crop, crop, 3) uint8."""
        centre = self.preparation.crop_center(self.preparation.load_resized(image))
        return centre.permute(1, 2, 0).contiguous().numpy()

    def describe(self) -> dict[str, Any]:
        """Describe the steps from an image to the input."""
        return self.preparation.describe()


class DrawingReader:
    """An `ImageReader` for glyphs: dark ink on a light background, resized into a square.

    Args:
        size: pixels a side of the network's input.
    """

    in_channels = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.input_shape = (1, size, size)

    def of_images(self, images: Sequence[ImageSource]) -> ImageSplit:
        """Return a split of these images in grey."""
        return ImageSplit(images, self)

    def prepare(self, images: Sequence[ImageSource]) -> Tensor:
        """Prepare images for the network, (N, 1, size, size) float32, ink in [0, 1] on a background of 0."""
        pictures = np.stack([self._read_grey(image) for image in images])
        return torch.from_numpy(255 - pictures)[:, None].to(torch.float32).div_(255.0)

    def render(self, image: ImageSource) -> npt.NDArray[np.uint8]:
        """Render an image as the network sees it, (size, size, 3) uint8."""
        return np.repeat(self._read_grey(image)[:, :, None], 3, axis=2)

    def _read_grey(self, image: ImageSource) -> npt.NDArray[np.uint8]:
        return fit_drawing(read_image(image), self.size)

    def describe(self) -> dict[str, Any]:
        """Describe the steps from an image to the input."""
        return {
            "kind": "drawing",
            "options": {"size": self.size},
            "decode": "at full size, upright by its EXIF data, grey, 8 bits a pixel; transparent parts white",
            "resize": f"bicubic, in proportion, to fit into {self.size} x {self.size}; padded with white",
            "channels": "1: darkness",
            "normalize": "input = (255 - pixel) / 255",
        }


class ImageSplit:
    """A `Split` of a user's images, all of one class without a name.

    Args:
        images: (N,) files or arrays.
        reader: prepares them for the network.
    """

    class_names: Sequence[str] = ("",)

    def __init__(self, images: Sequence[ImageSource], reader: PhotographReader | DrawingReader) -> None:
        self._images, self._reader = images, reader
        self.labels: npt.NDArray[np.int64] = np.zeros(len(images), dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of images, N."""
        return len(self._images)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """Load a batch of the reader's `input_shape`, float32, never augmented.

        Raises:
            DmlError: an image that can't be decoded.
        """
        return self._reader.prepare([self._images[index] for index in indices])

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Render image `index` as the network sees it, (height, width, 3) uint8."""
        return self._reader.render(self._images[index])
