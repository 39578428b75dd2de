"""Decoding of image files of any format and mode to upright RGB."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from dml_core import DmlError, StoredImage

# Pillow tries all its formats whatever the suffix is, also those that start other programs, as Ghostscript for EPS.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 64_000_000  # about 1 GB while a colour image is converted
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# A file, or one inside another file; or RGB (height, width, 3), grey (height, width) in memory.
ImageSource = Path | StoredImage | npt.NDArray[np.uint8]
_BACKGROUND = (255, 255, 255)  # of transparent images


def read_image(source: ImageSource, min_side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image to upright RGB.

    The image is rotated according to its EXIF data; grey, palette, CMYK and 16-bit images are converted; transparent
    pixels become white; of several frames, the first is used.

    Args:
        source: a file, an image inside a file, or an array.
        min_side: pixels; a JPEG file may be decoded at a half, quarter or eighth of its size if both sides stay at
            least this long, which saves most of the time of a large photograph. None: full size.
        max_pixels: the most pixels to decode, after that reduction.

    Raises:
        DmlError: if it can't be decoded, has too many pixels or another format than `FORMATS`, or isn't a regular file;
            names the file.
    """
    try:
        if isinstance(source, np.ndarray):
            return Image.fromarray(source).convert("RGB")
        if isinstance(source, Path):
            _refuse_special_file(source)
        encoded = source if isinstance(source, Path) else io.BytesIO(source.read())
        with Image.open(encoded, formats=FORMATS) as stored:
            if min_side is not None:
                stored.draft(None, (min_side, min_side))  # formats other than JPEG ignore it
            if (pixels := stored.width * stored.height) > max_pixels:
                raise Image.DecompressionBombError(f"{pixels:,}, more than max_pixels, {max_pixels:,}")
            stored.load()
            image = ImageOps.exif_transpose(stored)
        if image.mode.startswith(("I", "F")):  # Pillow would clip these to 255
            image = _to_8_bits(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, (*_BACKGROUND, 255)), image)
        return image.convert("RGB")
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, …
        if isinstance(source, np.ndarray):
            raise DmlError(
                f"an image is an array of shape {source.shape} and dtype {source.dtype}; "
                "expected (height, width, 3) or (height, width), uint8"
            ) from error
        raise _decoding_error(source, error) from error


def check_header(file: Path) -> None:
    """Check an image file by its header alone.

    Raises:
        DmlError: if the header isn't an image's; names the file.
    """
    try:
        _refuse_special_file(file)
        with Image.open(file, formats=FORMATS) as image:
            if min(image.size) < 1:
                raise ValueError(f"it is {image.size[0]} × {image.size[1]} pixels")
    except Exception as error:
        raise _decoding_error(file, error) from error


def _refuse_special_file(file: Path) -> None:
    """Refuse a pipe or a device, on which reading could wait for ever."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file")


def _decoding_error(file: Path | StoredImage, error: Exception) -> DmlError:
    if isinstance(error, DmlError):  # of a stored image, whose own file can't be read
        return error
    if isinstance(error, FileNotFoundError):
        reason = "no such file"
    elif isinstance(error, UnidentifiedImageError):  # whose message repeats the path
        size = file.stat().st_size if isinstance(file, Path) else len(file.read())
        reason = "it is empty" if size == 0 else f"not an image in {', '.join(FORMATS)}"
    elif isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        reason = f"it has too many pixels ({error})"
    else:
        reason = f"{type(error).__name__}: {error}"
    name = file if isinstance(file, Path) else file.name
    return DmlError(f"can't read the image {name}: {reason}; repair or remove the file")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Scale grey values to 8 bits: from 16 bits, or more if any is larger; floats from [0, 1]."""
    values = np.asarray(image).astype(np.float64)
    most = 1.0 if image.mode == "F" and values.max() <= 1.0 else max(65535.0, float(values.max()))
    return Image.fromarray(np.round(values.clip(0.0, most) * (255.0 / most)).astype(np.uint8))
