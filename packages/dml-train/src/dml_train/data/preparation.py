"""From a decoded image to the network's input: resize, crop, mirror, normalise.

Shapes: `B` batch, `H`, `W` height and width of a resized image, `S` side of the crop.

torchvision is imported where it is used, since it takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_train.data.array_split import uniforms
from dml_train.data.decoding import read_image

TrainCrop = Literal["resized", "random", "center"]
Normalize = Literal["imagenet", "caffe", "none"]

_TRIES = 10  # of a random area and ratio, as torchvision's RandomResizedCrop
_RATIO = np.log(4.0 / 3.0)


class _Normalisation(NamedTuple):
    """``input = scale · pixel + offset`` for each of the channels, the pixel in 0 to 255."""

    channels: tuple[int, int, int]  # which of R, G, B comes at each place
    scale: tuple[float, float, float]
    offset: tuple[float, float, float]


def _by(mean: Sequence[float], deviation: Sequence[float]) -> _Normalisation:
    scale = [1.0 / (255.0 * d) for d in deviation]
    offset = [-m / d for m, d in zip(mean, deviation)]
    return _Normalisation((0, 1, 2), (scale[0], scale[1], scale[2]), (offset[0], offset[1], offset[2]))


_NORMALISATIONS: dict[Normalize, _Normalisation] = {
    # The mean and deviation of ImageNet's pixels, by which torchvision's and timm's weights expect their input.
    "imagenet": _by((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # Blue, green, red in 0 to 255, less the mean: what weights that come from Caffe expect, BN-Inception's too.
    "caffe": _Normalisation((2, 1, 0), (1.0, 1.0, 1.0), (-104.0, -117.0, -128.0)),
    "none": _by((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True, slots=True)
class Preparation:
    """How an image becomes the network's input.

    An image is decoded and **resized** (bilinear, antialiased); evaluation sees the middle `crop` × `crop` pixels.
    Training sees a part of the resized image: with `train_crop` ``"random"`` any `crop` × `crop` pixels of it; with
    ``"resized"`` a part of random area and ratio of the sides (3/4 to 4/3), resized to `crop` × `crop`; with
    ``"center"`` the middle; each mirrored by chance.

    Source: resize to 256 × 256, random crop of 227 or 224 and mirror: Song et al. 2016, section 6, and the papers
    that follow it; ``"resized"``: torchvision's RandomResizedCrop, of the resized image as in Ranked List Loss,
    section 4.1.2 (there `square` and `min_area` = 0.5).

    Args:
        resize: pixels of the shorter side, or, if `square`, of both.
        square: whether the image is warped to a square, as the papers do; else its proportions are kept.
        crop: pixels a side of the network's input.
        train_crop: what training sees.
        min_area: for ``"resized"``, the smallest share of the resized image's area, above 0 and at most 1.
        flip: the chance that a training image is mirrored, 0 to 1.
        normalize: ``"imagenet"``: RGB, less ImageNet's mean, over its deviation; ``"caffe"``: BGR in 0 to 255, less
            (104, 117, 128); ``"none"``: RGB in 0 to 1.

    Raises:
        ValueError: a value out of its range.
    """

    resize: int = 256
    square: bool = False
    crop: int = 224
    train_crop: TrainCrop = "resized"
    min_area: float = 0.16
    flip: float = 0.5
    normalize: Normalize = "imagenet"

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.resize:
            raise ValueError(
                f"crop is {self.crop} and resize {self.resize}; expected 1 <= crop <= resize, the crop being cut "
                "out of the resized image"
            )
        if not 0.0 < self.min_area <= 1.0:
            raise ValueError(f"min_area is {self.min_area}; expected a share in (0, 1]")
        if not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"flip is {self.flip}; expected a chance in [0, 1]")
        if self.train_crop not in get_args(TrainCrop):
            raise ValueError(
                f"train_crop is {self.train_crop!r}; expected one of: {', '.join(get_args(TrainCrop))}"
            )
        if self.normalize not in _NORMALISATIONS:
            raise ValueError(
                f"normalize is {self.normalize!r}; expected one of: {', '.join(_NORMALISATIONS)}"
            )

    def describe(self) -> dict[str, Any]:
        """What evaluation does to an image, in JSON's types, for whoever has to do it elsewhere."""
        normalisation = _NORMALISATIONS[self.normalize]
        sides = "both sides" if self.square else "the shorter side, in proportion,"
        return {
            "decode": "upright by its EXIF data, RGB, 8 bits a channel; transparent parts white",
            "resize": f"bilinear, antialiased, {sides} to {self.resize} pixels",
            "crop": f"the middle {self.crop} x {self.crop}",
            "channels": "3: " + "".join("RGB"[channel] for channel in normalisation.channels),
            "normalize": "input = scale * pixel + offset for each channel, the pixel in 0 to 255",
            "scale": list(normalisation.scale),
            "offset": list(normalisation.offset),
        }

    def resized(self, file: Path) -> Tensor:
        """A file's image, decoded and resized, (3, H, W) uint8, RGB; both sides are at least `crop`.

        Raises:
            DmlError: if it can't be decoded, with the path.
        """
        from torchvision.transforms.v2 import functional as images

        # Twice the pixels that are wanted: what a JPEG's own reduction loses is then averaged away in resizing.
        image = torch.from_numpy(np.array(read_image(file, enough=2 * self.resize))).permute(2, 0, 1)
        height, width = image.shape[1:]
        factor = self.resize / min(height, width)
        size = [max(self.resize, round(side * factor)) for side in (height, width)]
        resized: Tensor = images.resize(image, [self.resize] * 2 if self.square else size, antialias=True)
        return resized

    def middle(self, image_3HW: Tensor) -> Tensor:
        """What evaluation sees of a resized image, (3, crop, crop) uint8."""
        top, left = ((side - self.crop) // 2 for side in image_3HW.shape[1:])
        return image_3HW[:, top : top + self.crop, left : left + self.crop]

    def batch(
        self, resized_images: Sequence[Tensor], seeds_B: npt.NDArray[np.uint64] | None = None
    ) -> Tensor:
        """The network's input, (B, 3, crop, crop) float32.

        Args:
            resized_images: B of `resized`.
            seeds_B: if given, training's random parts: row i is a function of image i and ``seeds_B[i]`` alone.
        """
        normalisation = _NORMALISATIONS[self.normalize]
        channels = list(normalisation.channels)
        if seeds_B is None:
            parts = [self.middle(image) for image in resized_images]
        else:
            draws_BU = uniforms(seeds_B, 2 * _TRIES + 3)
            parts = [self._random_part(image, draws) for image, draws in zip(resized_images, draws_BU)]
        batch_B3SS = torch.empty(len(parts), 3, self.crop, self.crop)
        for row, part in enumerate(parts):
            batch_B3SS[row] = part if self.normalize != "caffe" else part[channels]
        batch_B3SS *= torch.tensor(normalisation.scale)[:, None, None]
        batch_B3SS += torch.tensor(normalisation.offset)[:, None, None]
        return batch_B3SS

    def _random_part(self, image_3HW: Tensor, draws: npt.NDArray[np.float64]) -> Tensor:
        """What training sees of a resized image, (3, crop, crop) uint8; the draws are uniform in [0, 1)."""
        height, width = image_3HW.shape[1:]
        flip, across, down, *tries = draws
        if self.train_crop == "resized":
            from torchvision.transforms.v2 import functional as images

            h, w = self._random_size(height, width, np.array(tries).reshape(_TRIES, 2))
            top, left = _place(height - h, down), _place(width - w, across)
            part: Tensor = images.resized_crop(
                image_3HW, top, left, h, w, [self.crop, self.crop], antialias=True
            )
        elif self.train_crop == "random":
            top, left = _place(height - self.crop, down), _place(width - self.crop, across)
            part = image_3HW[:, top : top + self.crop, left : left + self.crop]
        else:
            part = self.middle(image_3HW)
        return part.flip(-1) if flip < self.flip else part

    def _random_size(self, height: int, width: int, tries: npt.NDArray[np.float64]) -> tuple[int, int]:
        """Height and width of random area and ratio: the first of the tries that fits, or else the whole image."""
        areas = height * width * (self.min_area + (1.0 - self.min_area) * tries[:, 0])
        ratios = np.exp(_RATIO * (2.0 * tries[:, 1] - 1.0))
        for w, h in zip(np.round(np.sqrt(areas * ratios)), np.round(np.sqrt(areas / ratios))):
            if 0 < w <= width and 0 < h <= height:
                return int(h), int(w)
        # Only very long images come here: as much of them as the widest ratios allow.
        return min(height, round(width * 4.0 / 3.0)), min(width, round(height * 4.0 / 3.0))


def _place(room: int, draw: float) -> int:
    """One of 0 … room, each as likely."""
    return int(draw * (room + 1))
