"""A user's images as a split, and the reader of drawings for networks trained on glyphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_train.data.decoding import ImageSource, read_image
from dml_train.data.prepare import fit_drawing


class ImageSplit:
    """A `Split` of a user's images, all of one class without a name.

    `prepare` makes the network's input of images, (N, channels, height, width) float32, and `render` shows one as the
    network sees it, (height, width, 3) uint8.
    """

    class_names: Sequence[str] = ("",)

    def __init__(
        self,
        images: Sequence[ImageSource],
        prepare: Callable[[Sequence[ImageSource]], Tensor],
        render: Callable[[ImageSource], npt.NDArray[np.uint8]],
    ) -> None:
        self._images, self._prepare, self._render = images, prepare, render
        self.labels: npt.NDArray[np.int64] = np.zeros(len(images), dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of images, N."""
        return len(self._images)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """Load a batch, float32, never augmented; an image that can't be decoded is a `DmlError`."""
        return self._prepare([self._images[index] for index in indices])

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Render image `index` as the network sees it, (height, width, 3) uint8."""
        return self._render(self._images[index])


class DrawingReader:
    """An `ImageReader` for glyphs: dark ink on a light background, resized into a square of `size` pixels a side."""

    in_channels = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.input_shape = (1, size, size)

    def of_images(self, images: Sequence[ImageSource]) -> ImageSplit:
        """Return a split of these images in grey."""
        return ImageSplit(images, self.prepare, self.render)

    def prepare(self, images: Sequence[ImageSource]) -> Tensor:
        """Prepare images for the network, (N, 1, size, size) float32, ink in [0, 1] on a background of 0."""
        pictures = np.stack([fit_drawing(read_image(image), self.size) for image in images])
        return torch.from_numpy(255 - pictures)[:, None].to(torch.float32).div_(255.0)

    def render(self, image: ImageSource) -> npt.NDArray[np.uint8]:
        """Render an image as the network sees it, (size, size, 3) uint8."""
        return np.repeat(fit_drawing(read_image(image), self.size)[:, :, None], 3, axis=2)

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
