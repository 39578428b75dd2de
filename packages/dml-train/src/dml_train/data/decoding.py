"""Decode image files to upright RGB, and check that a file is complete."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from dml_core import DmlError, StoredImage
from dml_train.data.prepare import FORMATS, MAX_PIXELS, decode
from dml_train.data.stored import ImagePart, name_of

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# A file, an image inside a file, or an array in memory: RGB (height, width, 3) or grey (height,
# width).
ImageSource = Path | StoredImage | npt.NDArray[np.uint8]

_TAIL = 64  # last bytes to read for the end mark, since some writers pad the end with a few zeros
# TIFF tags for the positions and lengths of strips and tiles.
_STRIPS = ((273, 279), (324, 325))
_ORIENTATION, _TURNED = (
    0x0112,
    range(5, 9),
)  # the EXIF tag, and the values that exchange width and height


def read_image(
    source: ImageSource, min_side: int | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode an image to upright RGB, see `decode`.

    Raise a `DmlError` that names the file if the image can't be decoded, exceeds the pixel limit,
    uses a format not in `FORMATS`, or isn't a regular file.
    """
    try:
        if isinstance(source, np.ndarray):
            return Image.fromarray(source).convert("RGB")
        if isinstance(source, Path):
            _check_regular_file(source)
        encoded = source if isinstance(source, Path) else io.BytesIO(source.read())
        if not isinstance(source, ImagePart):
            return decode(encoded, min_side, max_pixels)
        image = decode(encoded, None, max_pixels)
        source.check(image.size)
        return image.crop(source.box)
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, …
        if isinstance(source, np.ndarray):
            raise DmlError(
                f"an image is an array of shape {source.shape} and dtype {source.dtype}; "
                "expected (height, width, 3) or (height, width), uint8"
            ) from error
        raise _decoding_error(source, error) from error


def check_complete_image(file: Path | StoredImage) -> None:
    """Check that an image file is complete, usually using only the header and the last bytes.

    If it is an `ImagePart`, check that the box is inside the image; other images inside files
    aren't checked.

    A complete file ends with an end mark (JPEG, PNG, GIF), or isn't shorter than the stated length
    (BMP, WebP, TIFF); this check reads only a few bytes. A different end may still be valid, so
    such a file is decoded. Raise a `DmlError` that names the file if the header isn't an image's,
    or the image is truncated.
    """
    try:
        if isinstance(file, ImagePart):
            with Image.open(io.BytesIO(file.read()), formats=FORMATS) as image:
                turned = image.getexif().get(_ORIENTATION, 1) in _TURNED
                file.check(image.size[::-1] if turned else image.size)
            file = file.image
        if not isinstance(file, Path):
            return
        _check_regular_file(file)
        with Image.open(file, formats=FORMATS) as image:
            if min(image.size) < 1:
                raise ValueError(f"it is {image.size[0]} × {image.size[1]} pixels")
            complete = _ends_well(file, image)
    except Exception as error:
        raise _decoding_error(file, error) from error
    if not complete:
        read_image(file, min_side=1)


def _ends_well(file: Path, image: Image.Image) -> bool:
    with file.open("rb") as stored:
        head, size = stored.read(16), os.fstat(stored.fileno()).st_size
        stored.seek(max(0, size - _TAIL))
        tail = stored.read(_TAIL).rstrip(b"\0\r\n ")
    match image.format:
        case "JPEG" | "MPO":  # MPO is a JPEG file that contains further images
            return tail.endswith(b"\xff\xd9")
        case "PNG":
            return b"IEND\xaeB`\x82" in tail
        case "GIF":
            return tail.endswith(b";")
        case "BMP":
            return int.from_bytes(head[2:6], "little") <= size
        case "WEBP":
            return int.from_bytes(head[4:8], "little") + 8 <= size
    tags = getattr(image, "tag_v2", {})
    ends = [
        offset + length
        for offsets, lengths in _STRIPS
        for offset, length in zip(tags.get(offsets, ()), tags.get(lengths, ()))
    ]
    return max(ends, default=0) <= size


def _check_regular_file(file: Path) -> None:
    """Raise an OSError for a pipe or a device, since reading could wait forever."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(
            f"it is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file"
        )


def _decoding_error(file: Path | StoredImage, error: Exception) -> DmlError:
    if isinstance(error, DmlError):  # the file that contains a stored image can't be read
        return error
    if isinstance(error, FileNotFoundError):
        reason = "no such file"
    elif isinstance(error, UnidentifiedImageError):  # don't use its message, which repeats the path
        size = file.stat().st_size if isinstance(file, Path) else len(file.read())
        reason = "it is empty" if size == 0 else f"not an image in {', '.join(FORMATS)}"
    elif isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        reason = f"it has too many pixels ({error})"
    else:
        reason = f"{type(error).__name__}: {error}"
    return DmlError(f"can't read the image {name_of(file)}: {reason}; repair or remove the file")
