"""Image files to upright RGB, whatever they are stored as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dml_core import DmlError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_GROUND = (255, 255, 255)  # behind what is transparent


def read_image(file: Path, enough: int | None = None) -> Image.Image:
    """The image upright in RGB.

    It is turned as its EXIF data say; grey, palette, CMYK and 16-bit images are converted; what is transparent is
    white; of several frames the first is taken.

    Args:
        file: the image.
        enough: pixels; a JPEG file may be decoded at a half, quarter or eighth of its size if its sides are still
            at least this long, which saves most of a large photograph's time. None: whole.

    Raises:
        DmlError: if it can't be decoded, or has more pixels than Pillow takes (about 179 million), naming the file.
    """
    try:
        with Image.open(file) as stored:
            if enough is not None:
                stored.draft(None, (enough, enough))  # other formats than JPEG ignore it
            stored.load()
            image = ImageOps.exif_transpose(stored)
        if image.mode.startswith(("I", "F")):  # Pillow would clip these to 255
            image = _to_8_bits(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, (*_GROUND, 255)), image)
        return image.convert("RGB")
    except Exception as error:  # decoders raise whatever they like: OSError, SyntaxError, struct.error, …
        raise unreadable(file, error) from error


def check_header(file: Path) -> None:
    """Read the first bytes of an image file only.

    Raises:
        DmlError: if they aren't an image's, naming the file.
    """
    try:
        with Image.open(file) as image:
            if min(image.size) < 1:
                raise ValueError(f"it is {image.size[0]} × {image.size[1]} pixels")
    except Exception as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: Exception) -> DmlError:
    """What to say of an image file that a decoder refused."""
    if isinstance(error, FileNotFoundError):
        reason = "there is no such file"
    elif isinstance(error, UnidentifiedImageError):  # whose own message repeats the file's whole name
        reason = "it is empty" if file.stat().st_size == 0 else "not an image"
    elif isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        reason = f"more pixels than are decoded ({error})"
    else:
        reason = f"{type(error).__name__}: {error}"
    return DmlError(f"can't read the image {file}: {reason}; repair or remove the file")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Grey values of 16 bits, or of more if any is larger, to 8; floats from [0, 1]."""
    values = np.asarray(image).astype(np.float64)
    most = 1.0 if image.mode == "F" and values.max() <= 1.0 else max(65535.0, float(values.max()))
    return Image.fromarray(np.round(values.clip(0.0, most) * (255.0 / most)).astype(np.uint8))
