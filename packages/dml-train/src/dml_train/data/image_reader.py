"""Images of a person's own, read as those that a network was trained on; the training's data aren't needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dml_train.data.decoding import read_image
from dml_train.data.file_split import FileSplit
from dml_train.data.preparation import Preparation


class PhotographReader:
    """Reads images as the data sets of image files do.

    Args:
        options: those of the recipe's table; what `Preparation` doesn't know plays no part.
    """

    in_channels = 3

    def __init__(self, **options: Any) -> None:
        known = {field.name for field in fields(Preparation)}
        self.preparation = Preparation(**{name: value for name, value in options.items() if name in known})
        self.input_shape = (3, self.preparation.crop, self.preparation.crop)

    def of_files(self, files: Sequence[Path]) -> FileSplit:
        """These images, prepared as for evaluation."""
        return FileSplit({"": files}, self.preparation)

    def describe(self) -> dict[str, Any]:
        """The steps from an image to the input."""
        return self.preparation.describe()


class DrawingReader:
    """Reads images as glyphs: dark ink on a light ground, shrunk or grown to a square of `size` pixels."""

    in_channels = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.input_shape = (1, size, size)

    def of_files(self, files: Sequence[Path]) -> DrawingSplit:
        """These images in grey."""
        return DrawingSplit(files, self.size)

    def describe(self) -> dict[str, Any]:
        """The steps from an image to the input."""
        return {
            "decode": "upright by its EXIF data, grey, 8 bits a pixel",
            "resize": f"bicubic, in proportion, until it fits into {self.size} x {self.size}; padded with white",
            "channels": "1: darkness",
            "normalize": "input = (255 - pixel) / 255",
        }


class DrawingSplit:
    """A `Split` of files that show dark ink on a light ground.

    Args:
        files: (N,) the images.
        size: pixels a side of the network's input.
    """

    class_names: Sequence[str] = ("",)

    def __init__(self, files: Sequence[Path], size: int) -> None:
        self.files, self._size = files, size
        self.labels: npt.NDArray[np.int64] = np.zeros(len(files), dtype=np.int64)

    def __len__(self) -> int:
        """The number of files, N."""
        return len(self.files)

    def load(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None) -> Tensor:
        """(len(indices), 1, size, size) float32, ink in [0, 1] on a ground of 0; nothing is augmented.

        Raises:
            DmlError: a file that can't be decoded.
        """
        pictures = np.stack([self._grey(int(index)) for index in indices])
        return torch.from_numpy(255 - pictures)[:, None].to(torch.float32).div_(255.0)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Item `index` as the network sees it, (size, size, 3)."""
        return np.repeat(self._grey(index)[:, :, None], 3, axis=2)

    def _grey(self, index: int) -> npt.NDArray[np.uint8]:
        image = read_image(self.files[index]).convert("L")
        # An image of that very size is left as it is.
        return np.asarray(ImageOps.pad(image, (self._size, self._size), Image.Resampling.BICUBIC, color=255))
