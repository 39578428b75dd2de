"""Readers that prepare a user's images for a trained network, without the data set of its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dml_train.data.decoding import ImageSource, read_image
from dml_train.data.preparation import Preparation


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

    def of_images(self, images: Sequence[ImageSource]) -> PhotographSplit:
        """Return a split of these images, prepared as for evaluation."""
        return PhotographSplit(images, self.preparation)

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

    def of_images(self, images: Sequence[ImageSource]) -> DrawingSplit:
        """Return a split of these images in grey."""
        return DrawingSplit(images, self.size)

    def describe(self) -> dict[str, Any]:
        """Describe the steps from an image to the input."""
        return {
            "decode": "upright by its EXIF data, grey, 8 bits a pixel",
            "resize": f"bicubic, in proportion, to fit into {self.size} x {self.size}; padded with white",
            "channels": "1: darkness",
            "normalize": "input = (255 - pixel) / 255",
        }


class PhotographSplit:
    """A `Split` of images prepared as photographs, all of one class without a name.

    Args:
        images: (N,) files or arrays.
        preparation: prepares them for the network.
    """

    class_names: Sequence[str] = ("",)

    def __init__(self, images: Sequence[ImageSource], preparation: Preparation) -> None:
        self._images, self._preparation = images, preparation
        self.labels: npt.NDArray[np.int64] = np.zeros(len(images), dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of images, N."""
        return len(self._images)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """Load a batch, (len(indices), 3, crop, crop) float32, never augmented.

        Raises:
            DmlError: an image that can't be decoded.
        """
        return self._preparation.make_batch([self._load_resized(int(index)) for index in indices])

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the centre of image `index`, as the network sees it, (crop, crop, 3) uint8."""
        return self._preparation.crop_center(self._load_resized(index)).permute(1, 2, 0).contiguous().numpy()

    def _load_resized(self, index: int) -> Tensor:
        return self._preparation.load_resized(self._images[index])


class DrawingSplit:
    """A `Split` of images with dark ink on a light background, all of one class without a name.

    Args:
        images: (N,) files or arrays.
        size: pixels a side of the network's input.
    """

    class_names: Sequence[str] = ("",)

    def __init__(self, images: Sequence[ImageSource], size: int) -> None:
        self._images, self._size = images, size
        self.labels: npt.NDArray[np.int64] = np.zeros(len(images), dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of images, N."""
        return len(self._images)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """Load a batch, (len(indices), 1, size, size) float32, ink in [0, 1] on a background of 0, never augmented.

        Raises:
            DmlError: an image that can't be decoded.
        """
        pictures = np.stack([self._read_grey(int(index)) for index in indices])
        return torch.from_numpy(255 - pictures)[:, None].to(torch.float32).div_(255.0)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Render item `index` as the network sees it, (size, size, 3) uint8."""
        return np.repeat(self._read_grey(index)[:, :, None], 3, axis=2)

    def _read_grey(self, index: int) -> npt.NDArray[np.uint8]:
        image = read_image(self._images[index]).convert("L")
        # An image of this size stays unchanged.
        return np.asarray(ImageOps.pad(image, (self._size, self._size), Image.Resampling.BICUBIC, color=255))
