"""Prepare images for an exported network, with bits identical to `dml embed`.

This module needs only Pillow and numpy. `dml export` copies it into the model's folder, and the
model's JSON file contains the steps::

    import json
    from prepare import prepare

    steps = json.load(open("model.onnx.json"))["preparation"]
    images = prepare(["photo.jpg", "scan.png"], steps)  # (2, 3, 224, 224) float32

Shapes: `H`, `W` height and width of an image, `P`, `Q` height and width of the network's input, `S`
one of the two, `T` taps of a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

# By default, Pillow tries all formats regardless of the suffix, even formats that start programs
# (Ghostscript for EPS).
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 64_000_000  # about 1 GB while a colour image is converted
# If a JPEG is decoded at a fraction of its size, both sides stay at least this multiple of the
# resized side, so that resizing averages away most of the difference from the full size. See
# docs/guide/data.md for measurements.
REDUCED_SIDE = 4
_BACKGROUND = (255, 255, 255)  # for transparent images


Source = str | Path | BinaryIO
Size = int | Sequence[int]  # pixels per side, or height and width


class Normalisation(NamedTuple):
    """Coefficients of ``input = scale · pixel + offset`` per channel, for pixels in 0 to 255."""

    channels: tuple[int, int, int]  # the index in RGB per input channel
    scale: tuple[float, float, float]
    offset: tuple[float, float, float]


def _from_mean(mean: Sequence[float], deviation: Sequence[float]) -> Normalisation:
    scale = [1.0 / (255.0 * d) for d in deviation]
    offset = [-m / d for m, d in zip(mean, deviation)]
    return Normalisation(
        (0, 1, 2), (scale[0], scale[1], scale[2]), (offset[0], offset[1], offset[2])
    )


# Values of the option ``normalize``.
NORMALISATIONS = {
    # RGB, with mean and deviation of ImageNet's pixels, as torchvision's and most of timm's weights
    # expect.
    "imagenet": _from_mean((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # RGB in -1 to 1: SigLIP, EfficientNet-Lite, networks from TensorFlow.
    "half": _from_mean((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    # Radford et al. 2021, Learning Transferable Visual Models From Natural Language Supervision;
    # also OpenCLIP.
    "clip": _from_mean((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    # Blue, green, red in 0 to 255 minus the mean, as weights from Caffe expect, for example
    # BN-Inception's.
    "caffe": Normalisation((2, 1, 0), (1.0, 1.0, 1.0), (-104.0, -117.0, -128.0)),
    "none": _from_mean((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


def prepare(files: Sequence[Source], steps: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Prepare images for the network, (N, channels, P, Q) float32.

    Args:
        files: N paths, or files opened in binary mode, such as ``io.BytesIO(upload)``.
        steps: the value of ``"preparation"`` in the model's JSON file.

    Raises:
        ValueError: if `files` is empty, or `steps` describes an unsupported preparation.
        OSError, Image.DecompressionBombError, …: if an image can't be decoded, see `decode`.
    """
    if steps.get("kind") not in KINDS:
        raise ValueError(
            f"steps contains the kind {steps.get('kind')!r}; expected one of: {', '.join(KINDS)}, "
            "as in the value of 'preparation' in the JSON file that dml export wrote"
        )
    prepare_one = KINDS[steps["kind"]]
    return np.stack([prepare_one(file, **steps["options"]) for file in files])


def prepare_photograph(
    file: Source,
    resize: Size,
    square: bool,
    crop: Size,
    interpolation: str,
    normalize: str,
    max_pixels: int,
) -> npt.NDArray[np.float32]:
    """Decode, resize, crop the centre and normalise, (3, P, Q) float32, with the data set's
    options.
    """
    image = decode(file, REDUCED_SIDE * max(both_sides(resize)), max_pixels)
    height, width = choose_size(image.height, image.width, resize, square)
    pixels_PQ3 = resize_center(np.asarray(image), height, width, crop, interpolation)
    channels, scale, offset = NORMALISATIONS[normalize]
    scale_311, offset_311 = (
        np.array(values, dtype=np.float32)[:, None, None] for values in (scale, offset)
    )
    return pixels_PQ3.transpose(2, 0, 1)[list(channels)] * scale_311 + offset_311


def prepare_drawing(file: Source, size: int) -> npt.NDArray[np.float32]:
    """Decode an image and fit it into a square, (1, size, size) float32, ink in [0, 1] on a
    background of 0.
    """
    return (255 - fit_drawing(decode(file), size))[None].astype(np.float32) / np.float32(255)


KINDS: Mapping[str, Callable[..., npt.NDArray[np.float32]]] = {
    "photograph": prepare_photograph,
    "drawing": prepare_drawing,
}


def decode(file: Source, min_side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image to upright RGB.

    The image is rotated according to the EXIF data; grey, palette, CMYK and 16-bit images are
    converted; transparent pixels become white; if there are multiple frames, the first is used. If
    Pillow can't decode the image, raise an OSError, SyntaxError or the like.

    Args:
        file: a path or a binary file.
        min_side: decode a JPEG file at a half, quarter or eighth of the size if both sides stay at
            least `min_side` pixels, which saves most of the time for a large photograph. By
            default, full size is used.
        max_pixels: maximum number of pixels to decode, after this reduction; more raise
            `Image.DecompressionBombError`.
    """
    with Image.open(file, formats=FORMATS) as stored:
        if min_side is not None:
            stored.draft(None, (min_side, min_side))  # formats other than JPEG ignore it
        if (pixels := stored.width * stored.height) > max_pixels:
            raise Image.DecompressionBombError(
                f"{pixels:,} pixels exceed max_pixels = {max_pixels:,}"
            )
        stored.load()
        image = ImageOps.exif_transpose(stored)
    if image.mode.startswith(("I", "F")):  # Pillow would clip these to 255
        image = _to_8_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (*_BACKGROUND, 255)), image)
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale grey values so that 255 is 1 if floats don't exceed 1, otherwise 65535 or a larger
    maximum.
    """
    values = np.asarray(image).astype(np.float64)
    most = 1.0 if image.mode == "F" and values.max() <= 1.0 else max(65535.0, float(values.max()))
    return Image.fromarray(np.round(values.clip(0.0, most) * (255.0 / most)).astype(np.uint8))


def both_sides(size: Size) -> tuple[int, int]:
    """Return height and width of a size: a number for both, or a pair."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def choose_size(height: int, width: int, resize: Size, square: bool) -> tuple[int, int]:
    """Return the height and width to resize to: `resize` if it is a pair or `square`, otherwise in
    proportion.
    """
    if square or not isinstance(resize, int):
        return both_sides(resize)
    factor = resize / min(height, width)
    return max(resize, round(height * factor)), max(resize, round(width * factor))


def resize_center(
    pixels_HW3: npt.NDArray[np.uint8], height: int, width: int, crop: Size, interpolation: str
) -> npt.NDArray[np.uint8]:
    """Resize an image to (height, width, 3), and return the centre, `crop`.

    The result is identical to ``torch.nn.functional.interpolate(…, antialias=True)`` on bytes,
    which filters along the width and then along the height with integer weights. Pillow rounds
    weights differently, so it can differ by 1.
    """
    p, q = both_sides(crop)
    rows = _weigh(pixels_HW3.shape[0], height, p, interpolation)
    columns = _weigh(pixels_HW3.shape[1], width, q, interpolation)
    first, last = rows.pixels.min(), rows.pixels.max()  # the only rows that are used by the crop
    filtered = _filter(pixels_HW3[first : last + 1], columns, axis=1)
    return _filter(filtered, rows._replace(pixels=rows.pixels - first), axis=0)


class _Filter(NamedTuple):
    """The source pixels for each output pixel, with weights: ``sum(pixel · weight) / 2**shift``."""

    pixels: npt.NDArray[np.int64]  # (T, S)
    weights: npt.NDArray[np.int32]  # (T, S)
    shift: int


def _weigh(source: int, target: int, crop: int, interpolation: str) -> _Filter:
    """Compute the weights that resize `source` to `target` pixels, in torch's order, for the
    central `crop` pixels.
    """
    scale = source / target
    stretch = max(scale, 1.0)
    radius = stretch * (1.0 if interpolation == "bilinear" else 2.0)
    centre_S = scale * (np.arange(target) + 0.5)
    first_S = np.maximum((centre_S - radius + 0.5).astype(np.int64), 0)
    count_S = np.minimum((centre_S + radius + 0.5).astype(np.int64), source) - first_S
    taps_T1 = np.arange(count_S.max())[:, None]
    distance_TS = np.abs((taps_T1 + first_S - centre_S + 0.5) * (1.0 / stretch))
    if interpolation == "bilinear":
        weights_TS = np.maximum(1.0 - distance_TS, 0.0)
    else:
        d, a = distance_TS, -0.5
        near = ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
        far = (((d - 5.0) * d + 8.0) * d - 4.0) * a
        weights_TS = np.where(d < 1.0, near, np.where(d < 2.0, far, 0.0))
    weights_TS = np.where(taps_T1 < count_S, weights_TS, 0.0)
    weights_TS = weights_TS / weights_TS.sum(axis=0)
    largest = float(weights_TS.max())
    shift = next((bits for bits in range(22) if int(0.5 + largest * 2 ** (bits + 1)) >= 2**15), 22)
    integers_TS = np.trunc(weights_TS * 2.0**shift + np.copysign(0.5, weights_TS)).astype(np.int32)
    begin = (target - crop) // 2
    centre = np.s_[:, begin : begin + crop]
    return _Filter(np.minimum(first_S + taps_T1, source - 1)[centre], integers_TS[centre], shift)


def _filter(pixels: npt.NDArray[np.uint8], by: _Filter, axis: int) -> npt.NDArray[np.uint8]:
    """Filter the pixels of an image (H, W, 3) along `axis`."""
    shape = list(pixels.shape)
    shape[axis] = by.pixels.shape[1]
    total = np.full(shape, 1 << (by.shift - 1), dtype=np.int32)  # a half, to round
    along = (-1, 1, 1) if axis == 0 else (-1, 1)
    for places_S, weights_S in zip(by.pixels, by.weights):
        total += pixels.take(places_S, axis) * weights_S.reshape(along)
    return (total >> by.shift).clip(0, 255).astype(np.uint8)


def fit_drawing(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """Fit an image into a white square, (size, size) uint8, in grey; an image of this size isn't
    changed.
    """
    grey = image.convert("L")
    return np.asarray(ImageOps.pad(grey, (size, size), Image.Resampling.BICUBIC, color=255))
