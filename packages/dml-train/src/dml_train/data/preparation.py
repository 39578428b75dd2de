"""The preparation of an image file for the network: decode, resize, crop, mirror, augment,
normalise.

For evaluation, `prepare.py` computes identical bits, and torch isn't needed: `dml export` copies it
next to a model.

Shapes: `B` batch, `H`, `W` height and width of a resized image, `P`, `Q` height and width of the
crop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from dml_train.data.array_split import draw_uniforms
from dml_train.data.augmentation import Augmentation, Steps
from dml_train.data.decoding import ImageSource, read_image
from dml_train.data.prepare import (
    MAX_PIXELS,
    NORMALISATIONS,
    REDUCED_SIDE,
    Size,
    both_sides,
    choose_size,
)

_TRIES = 10  # number of random areas and ratios to try, as in torchvision's RandomResizedCrop
_RATIO = np.log(4.0 / 3.0)
# The options that evaluation needs; they are arguments of `prepare_photograph`.
_EVALUATED = ("resize", "square", "crop", "interpolation", "normalize", "max_pixels")


class ImageSplit:
    """A `Split` of a user's images, all in a single unnamed class.

    `prepare` turns images into the network's input, (N, channels, height, width) float32, and
    `render` shows an image as the network sees it, (height, width, 3) uint8.
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

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> Tensor:
        """Load images, float32, never augmented; raise a `DmlError` if an image can't be
        decoded.
        """
        return self._prepare([self._images[index] for index in indices])

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Render image `index` as the network sees it, (height, width, 3) uint8."""
        return self._render(self._images[index])


@dataclass(frozen=True, slots=True)
class Preparation:
    """The steps from an image file to the network's input; an `ImageReader` for a user's images.

    An image is decoded and **resized** (antialiased). Evaluation crops the centre; training crops
    according to `train_crop`, and mirrors randomly.

    Source: for resizing to 256 × 256, random crops of 227 or 224 and mirroring, Song et al. 2016,
    section 6, and the papers that follow it; for ``"resized"``, torchvision's RandomResizedCrop,
    applied to the resized image as in Ranked List Loss, section 4.1.2 (with `square`). Raises a
    ValueError if a number is out of range.
    """

    in_channels: ClassVar[int] = 3

    # Length of the shorter side in pixels, or of both sides if `square`; or height and width, as in
    # [256, 128].
    resize: Size = 256
    square: bool = (
        False  # whether to resize to a square, as the papers do, or to keep the proportions
    )
    crop: Size = 224  # side of the network's input in pixels, or height and width
    # "random": a crop of this size at a random position; "resized": a part with random area and
    # aspect ratio (3/4 to 4/3), resized to this size; "center": the centre.
    train_crop: Literal["resized", "random", "center"] = "resized"
    # For "resized", the smallest share of the resized image's area, above 0 and at most 1.
    min_area: float = 0.16
    flip: float = 0.5  # probability of mirroring a training image, 0 to 1
    normalize: Literal["imagenet", "half", "clip", "caffe", "none"] = (
        "imagenet"  # see `NORMALISATIONS`
    )
    # Interpolation for all resizing; most of timm's weights expect bicubic.
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    max_pixels: int = MAX_PIXELS  # a larger image is an error, raised before the image takes memory
    augment: Steps = ()  # further transforms of training images, after the flip, see `Augmentation`
    _augmentation: Augmentation | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        sizes = {"crop": self.crop, "resize": self.resize}
        for name, size in sizes.items():
            if not isinstance(size, int) and len(size) != 2:
                raise ValueError(f"{name} is {size}; expected a number, or height and width")
        if not isinstance(self.resize, int) and self.square:
            raise ValueError(
                f"resize is {self.resize}, and square is true; expected one of the two"
            )
        (height, width), (p, q) = map(both_sides, (self.resize, self.crop))
        if not (1 <= p <= height and 1 <= q <= width):
            raise ValueError(
                f"crop is {self.crop} and resize is {self.resize}; expected 1 <= crop <= resize, "
                "since the resized image is cropped"
            )
        if not 0.0 < self.min_area <= 1.0:
            raise ValueError(f"min_area is {self.min_area}; expected a share in (0, 1]")
        if not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"flip is {self.flip}; expected a probability in [0, 1]")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels is {self.max_pixels}; expected at least 1")
        if self.augment:
            object.__setattr__(
                self, "_augmentation", Augmentation(self.augment, both_sides(self.crop))
            )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """The shape of the network's input: channels, height, width."""
        return (self.in_channels, *both_sides(self.crop))

    @property
    def reduced_side(self) -> int:
        """The length in pixels that both sides of a JPEG file keep at least when it is decoded at a
        reduced size.
        """
        return REDUCED_SIDE * max(both_sides(self.resize))

    def describe(self) -> dict[str, Any]:
        """Describe the steps for evaluation in JSON types, for other implementations."""
        normalisation = NORMALISATIONS[self.normalize]
        (height, width), (p, q) = map(both_sides, (self.resize, self.crop))
        resized = f"the shorter side, in proportion, to {height} pixels"
        if self.square or not isinstance(self.resize, int):
            resized = f"to {height} x {width} pixels (height x width)"
        return {
            "kind": "photograph",
            "options": {name: getattr(self, name) for name in _EVALUATED},
            "decode": (
                "upright by its EXIF data, RGB, 8 bits per channel; transparent parts white; a "
                "JPEG file at the smallest of an eighth, a quarter and a half of its size, scaled "
                "by its decoder (Pillow's Image.draft), that keeps both sides at least "
                f"{self.reduced_side} pixels"
            ),
            "resize": f"{self.interpolation}, antialiased, {resized}",
            "crop": f"the middle {p} x {q}",
            "channels": "3: " + "".join("RGB"[channel] for channel in normalisation.channels),
            "normalize": "input = scale * pixel + offset for each channel, the pixel in 0 to 255",
            "scale": list(normalisation.scale),
            "offset": list(normalisation.offset),
        }

    def of_images(self, images: Sequence[ImageSource]) -> ImageSplit:
        """Return a split of these images, prepared as for evaluation."""
        return ImageSplit(images, self.prepare, self.render)

    def prepare(self, images: Sequence[ImageSource]) -> Tensor:
        """Prepare images as for evaluation, (N, 3, P, Q) float32."""
        return self.make_batch([self.load_resized(image) for image in images])

    def render(self, image: ImageSource) -> npt.NDArray[np.uint8]:
        """Render the centre of an image as the network sees it, (P, Q, 3) uint8."""
        return self.show(self.load_resized(image))

    def load_resized(self, source: ImageSource) -> Tensor:
        """Decode and resize an image to (3, H, W) uint8, RGB; raise a `DmlError` if it can't be
        decoded.
        """
        image = np.array(read_image(source, self.reduced_side, self.max_pixels))
        height, width = choose_size(image.shape[0], image.shape[1], self.resize, self.square)
        return self._resize(torch.from_numpy(image).permute(2, 0, 1), height, width)

    def show(self, image_3HW: Tensor) -> npt.NDArray[np.uint8]:
        """Return the centre of a resized image for display, (P, Q, 3) uint8."""
        return self._crop_center(image_3HW).permute(1, 2, 0).contiguous().numpy()

    def show_augmented(self, image_3HW: Tensor, seed: int) -> npt.NDArray[np.uint8]:
        """Return a resized image as `make_batch` augments it with this seed, for display, (P, Q, 3)
        uint8.
        """
        channels, scale, offset = NORMALISATIONS[self.normalize]
        input_3PQ = self.make_batch([image_3HW], np.array([seed], dtype=np.uint64))[0]
        pixels_3PQ = (input_3PQ - torch.tensor(offset)[:, None, None]) / torch.tensor(scale)[
            :, None, None
        ]
        pixels_PQ3 = pixels_3PQ[list(channels)].permute(
            1, 2, 0
        )  # the order of channels is its own inverse
        return pixels_PQ3.round().clamp(0, 255).to(torch.uint8).numpy()

    def make_batch(
        self, resized_images: Sequence[Tensor], seeds_B: npt.NDArray[np.uint64] | None = None
    ) -> Tensor:
        """Crop and normalise images to the network's input, (B, 3, P, Q) float32.

        Args:
            resized_images: B images from `load_resized`.
            seeds_B: if given, crop randomly, as in training; row i depends only on image i and
                ``seeds_B[i]``.
        """
        normalisation = NORMALISATIONS[self.normalize]
        if seeds_B is None:
            crops = [self._crop_center(image) for image in resized_images]
        else:
            draws_BU = draw_uniforms(seeds_B, 2 * _TRIES + 3)
            crops = [
                self._crop_at_random(image, draws) for image, draws in zip(resized_images, draws_BU)
            ]
            if self._augmentation is not None:
                crops = [
                    self._augmentation.change_bytes(crop, s)
                    for crop, s in zip(crops, seeds_B.tolist())
                ]
        batch_B3PQ = torch.empty(len(crops), *self.input_shape)
        for row, crop in enumerate(crops):
            batch_B3PQ[row] = (
                crop if self.normalize != "caffe" else crop[list(normalisation.channels)]
            )
        batch_B3PQ *= torch.tensor(normalisation.scale)[:, None, None]
        batch_B3PQ += torch.tensor(normalisation.offset)[:, None, None]
        if seeds_B is not None and self._augmentation is not None:
            for row, seed in enumerate(seeds_B.tolist()):
                batch_B3PQ[row] = self._augmentation.erase(batch_B3PQ[row], seed)
        return batch_B3PQ

    def _crop_center(self, image_3HW: Tensor) -> Tensor:
        p, q = both_sides(self.crop)
        top, left = (image_3HW.shape[1] - p) // 2, (image_3HW.shape[2] - q) // 2
        return image_3HW[:, top : top + p, left : left + q]

    def _crop_at_random(self, image_3HW: Tensor, draws: npt.NDArray[np.float64]) -> Tensor:
        """Crop a resized image as training does, to (3, P, Q) uint8; the draws are uniform in [0,
        1).
        """
        flip, across, down, *tries = draws
        if self.train_crop == "center":
            crop = self._crop_center(image_3HW)
        else:
            height, width = image_3HW.shape[1:]
            h, w = both_sides(self.crop)
            if self.train_crop == "resized":
                h, w = choose_crop_size(
                    height, width, self.min_area, np.array(tries).reshape(_TRIES, 2)
                )
            # All offsets are equally likely.
            top, left = int(down * (height - h + 1)), int(across * (width - w + 1))
            crop = image_3HW[:, top : top + h, left : left + w]
            if self.train_crop == "resized":
                crop = self._resize(crop, *both_sides(self.crop))
        return crop.flip(-1) if flip < self.flip else crop

    def _resize(self, image_3HW: Tensor, height: int, width: int) -> Tensor:
        """Resize bytes with torch's integer weights, for identical bits on all processors."""
        # Note that torchvision's resize should not be used: it may compute in float32, which rounds
        # differently.
        return F.interpolate(
            image_3HW[None], (height, width), mode=self.interpolation, antialias=True
        )[0]


def choose_crop_size(
    height: int, width: int, min_area: float, tries: npt.NDArray[np.float64]
) -> tuple[int, int]:
    """Choose height and width of a crop with random area and aspect ratio, like torchvision's
    RandomResizedCrop.

    Args:
        height, width: size of the image.
        min_area: smallest share of the image's area.
        tries: (T, 2), uniform in [0, 1), for area and ratio. The first crop that fits into the
            image is chosen; if none fits, the largest crop with a ratio from 3/4 to 4/3.
    """
    areas = height * width * (min_area + (1.0 - min_area) * tries[:, 0])
    ratios = np.exp(_RATIO * (2.0 * tries[:, 1] - 1.0))
    for w, h in zip(np.round(np.sqrt(areas * ratios)), np.round(np.sqrt(areas / ratios))):
        if 0 < w <= width and 0 < h <= height:
            return int(h), int(w)
    return min(height, round(width * 4.0 / 3.0)), min(width, round(height * 4.0 / 3.0))
