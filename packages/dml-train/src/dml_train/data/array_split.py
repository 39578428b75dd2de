"""A split of images in memory, and batched augmentation.

Shapes: `N` items, `B` batch, `H`, `W` height and width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from dml_core.drawing import GOLDEN, splitmix64


def draw_uniforms(seeds: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.float64]:
    """Draw numbers uniformly in [0, 1), (B, count); row i depends only on ``seeds[i]``.

    ``u[i, j] = mix(mix(seeds[i]) + (j + 1)·γ) / 2**64`` to 53 bits: splitmix64 with a counter as
    state.

    Source: Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators, Fig. 16.

    Args:
        seeds: (B,), uint64.
        count: numbers per row.
    """
    counters = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
    words = splitmix64(splitmix64(seeds)[:, None] + counters[None, :])
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Jitter:
    """Random small changes of shape and ink that keep a drawn character recognisable.

    Images are rotated, scaled along both axes, slanted and shifted (using a single bilinear affine
    map). Strokes become thicker or thinner (a mix with the 3 × 3 maximum or minimum), and the ink
    becomes fainter. Amounts are drawn uniformly between plus and minus the bound; the ink is
    multiplied by a factor in ``[1 - fade, 1]``. Raises a `ValueError` if a bound is negative, or a
    share exceeds 1.
    """

    rotation: float = 10.0  # degrees
    scale: float = 0.15  # natural logarithm of the factor for both axes
    stretch: float = 0.15  # natural logarithm of the factor for the width relative to the height
    shear: float = 0.2  # horizontal slant, in widths per height
    shift: float = 2.0  # in pixels, along both axes
    stroke: float = 0.5  # share of the maximum or minimum in the mix, 0 to 1
    fade: float = 0.3  # largest share of the ink that is lost, 0 to 1

    def __post_init__(self) -> None:
        for name, bound in asdict(self).items():
            most = 1.0 if name in ("stroke", "fade") else np.inf
            if not 0.0 <= bound <= most:
                raise ValueError(f"{name} is {bound}; expected a number from 0 to {most}")

    def __call__(self, images_B1HW: Tensor, seeds_B: npt.NDArray[np.uint64]) -> Tensor:
        """Augment images, float32, ink in [0, 1] on a background of 0; row i depends only on image
        and seed i.
        """
        # Operations must be elementwise or within an image, so that a row's bits don't depend on
        # the batch. In a matrix product, the order of summation would depend on the batch.
        amounts_B7 = (2.0 * draw_uniforms(seeds_B, 7) - 1.0) * np.array(
            astuple(self), dtype=np.float64
        )
        rotation, scale, stretch, shear, _, stroke, fade = amounts_B7.T
        shift_B2 = (2.0 * draw_uniforms(~seeds_B, 2) - 1.0) * self.shift
        height, width = images_B1HW.shape[-2:]

        # grid_sample needs the position in the input for each output pixel (x, y), in coordinates
        # from -1 to 1: across * (cos * x - sin * y + shear * (sin * x + cos * y)) + shift, and
        # down * (sin * x + cos * y) + shift.
        cos, sin = np.cos(np.radians(rotation)), np.sin(np.radians(rotation))
        across, down = np.exp(-scale - stretch / 2.0), np.exp(-scale + stretch / 2.0)
        coefficients = np.stack(
            [
                across * (cos + shear * sin), across * (shear * cos - sin),
                2.0 * shift_B2[:, 0] / width,
                down * sin, down * cos, 2.0 * shift_B2[:, 1] / height,
            ]
        ).astype(np.float32)  # fmt: skip
        xx, xy, x0, yx, yy, y0 = torch.from_numpy(coefficients)[:, :, None, None]
        x_1W = ((torch.arange(width) + 0.5) * (2.0 / width) - 1.0)[None, :]
        y_H1 = ((torch.arange(height) + 0.5) * (2.0 / height) - 1.0)[:, None]
        grid_BHW2 = torch.stack([xx * x_1W + xy * y_H1 + x0, yx * x_1W + yy * y_H1 + y0], dim=-1)
        images_B1HW = F.grid_sample(images_B1HW, grid_BHW2, align_corners=False)

        # The minimum of x is minus the maximum of -x.
        sign_B111, share_B111 = (
            torch.from_numpy(part.astype(np.float32))[:, None, None, None]
            for part in (np.sign(stroke), np.abs(stroke))
        )
        changed_B1HW = _maximum_3x3(sign_B111 * images_B1HW) * sign_B111
        images_B1HW = images_B1HW + share_B111 * (changed_B1HW - images_B1HW)
        return (
            images_B1HW
            * torch.from_numpy((1.0 - np.abs(fade)).astype(np.float32))[:, None, None, None]
        )


def _maximum_3x3(images_B1HW: Tensor) -> Tensor:
    """Take the maximum over a pixel and the eight neighbours; pixels outside the image are 0."""
    # Compute along rows, then columns: with a single channel on a CPU, this is forty times as fast
    # as max_pool2d.
    padded = F.pad(images_B1HW, (1, 1, 1, 1))
    wide = torch.maximum(torch.maximum(padded[..., :-2], padded[..., 1:-1]), padded[..., 2:])
    return torch.maximum(torch.maximum(wide[..., :-2, :], wide[..., 1:-1, :]), wide[..., 2:, :])


class ArraySplit:
    """A `Split` of images in memory, (N, H, W) uint8; `jitter`, if given, augments batches.

    ``class_names[labels[i]]`` names item i.
    """

    in_channels = 1

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        class_names: Sequence[str],
        jitter: Jitter | None = None,
    ) -> None:
        self.labels = labels
        self.class_names = class_names
        self._images = images
        self._jitter = jitter

    def __len__(self) -> int:
        """Return the number of items, N."""
        return len(self.labels)

    def load(
        self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
    ) -> Tensor:
        """Load images, (len(indices), 1, H, W) float32 in [0, 1], augmented if seeds are given."""
        images_B1HW = torch.from_numpy(self._images[indices])[:, None].to(torch.float32).div_(255.0)
        if seeds is None or self._jitter is None:
            return images_B1HW
        return self._jitter(images_B1HW, seeds)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """Render item `index` as dark ink on white, (H, W, 3) uint8."""
        return np.repeat(255 - self._images[index][:, :, None], 3, axis=2)

    def augmented_picture(self, index: int, seed: int) -> npt.NDArray[np.uint8]:
        """Render item `index` as augmented with this seed, dark ink on white, (H, W, 3) uint8."""
        ink_HW = self.load(np.array([index]), np.array([seed], dtype=np.uint64))[0, 0]
        return (
            (255.0 * (1.0 - ink_HW)).round().to(torch.uint8).numpy()[:, :, None].repeat(3, axis=2)
        )
