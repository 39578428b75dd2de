"""The comparison of an exported network with `TrainedModel.embed_images` on image files.

Shapes: `N`, `B` images, `C`, `H`, `W` of the network's input, `D` embedding dimension.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from dml_train.data.prepare import KINDS, MAX_PIXELS, prepare
from dml_train.networks.model import EmbeddingModel
from dml_train.trained.model import TrainedModel

Shape = tuple[int, int, int]  # C, H, W
Compute = Callable[[Tensor], npt.NDArray[np.float32]]  # (B, C, H, W) to (B, D)
_BATCHES = (1, 2, 5)
# Heights and widths of the photographs. Most data sets decode the first, of a phone's size, at a fraction of its size.
_SIDES = ((3000, 4000), (1600, 1200), (768, 1024), (480, 640), (90, 120))


def prepares_files(model: TrainedModel) -> bool:
    """Whether `prepare` can prepare image files for the network, and not only a plugin's reader."""
    return model.reader is not None and model.reader.describe().get("kind") in KINDS


class Photographs(NamedTuple):
    """Photographs as inputs of the network, and as the embeddings that `dml embed` computes."""

    prepared: Tensor  # (N, C, H, W), by `prepare`
    loaded: Tensor  # (N, C, H, W), by the data set's reader
    embeddings: npt.NDArray[np.float32]  # (N, D)


def embed_photographs(model: TrainedModel) -> Photographs:
    """Draw photographs, prepare them in both ways, and embed them.

    If the data set can't read image files, inputs are noise.
    """
    if model.reader is None:
        images = draw_noise(max(_BATCHES), model.input_shape)
        return Photographs(images, images, model.embed(images))
    steps = model.reader.describe()
    with tempfile.TemporaryDirectory() as folder:
        files = _draw_photographs(Path(folder), steps.get("options", {}).get("max_pixels", MAX_PIXELS))
        loaded = model.reader.of_images(files).load(np.arange(len(files)))
        prepared = torch.from_numpy(prepare(files, steps)) if prepares_files(model) else loaded
        return Photographs(prepared, loaded, model.embed_images(files))


def _draw_photographs(folder: Path, max_pixels: int) -> list[Path]:
    """Write JPEG files of smooth colours with grain, none of more than `max_pixels`."""
    random = np.random.default_rng(0)
    files = [folder / f"{number}.jpg" for number in range(len(_SIDES))]
    for file, (height, width) in zip(files, _SIDES):
        factor = min(1.0, math.sqrt(max_pixels / (height * width)))
        size = max(1, int(width * factor)), max(1, int(height * factor))
        smooth, grain = (
            Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize(size)
            for side in (12, 600)
        )
        Image.blend(smooth, grain, 0.3).save(file, quality=90)
    return files


def draw_noise(count: int, shape: Shape) -> Tensor:
    """Return noise with the variance of normalised images."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


@torch.no_grad()
def largest_difference(network: EmbeddingModel, exported: Compute, images: Tensor) -> float:
    """Return the largest difference between the networks' embeddings over all batches, relative to the largest entry.

    It is infinite if shapes differ or an entry isn't finite.
    """
    largest, difference = 0.0, 0.0
    for size in _BATCHES:
        expected, got = network(images[:size]).numpy(), exported(images[:size])
        if got.shape != expected.shape or not np.isfinite(got).all():
            return float("inf")
        largest = max(largest, float(np.abs(expected).max()))
        difference = max(difference, float(np.abs(expected - got).max()))
    return difference / max(largest, 1e-30)


def largest_angle(rows_ND: npt.NDArray[np.float32], others_ND: npt.NDArray[np.float32]) -> float:
    """Return the largest value of 1 minus the cosine of corresponding rows."""
    a, b = rows_ND.astype(np.float64), others_ND.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float((1.0 - (a * b).sum(axis=1) / np.maximum(norms, 1e-30)).clip(0.0).max())
