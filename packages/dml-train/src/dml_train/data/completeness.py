"""Image files cut off behind their header: found before training without decoding every image.

A complete file ends as its format says: with an end mark (JPEG, PNG, GIF), or not before its stated length (BMP, WebP,
TIFF). That is one read of a few bytes. A file that ends otherwise may still be good, so that alone is decoded.
"""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from dml_train.data.decoding import check_header, read_image
from dml_train.data.prepare import FORMATS

_TAIL = 64  # bytes; some writers pad the end with a few zeros
# TIFF's tags of the positions and lengths of its strips and tiles.
_STRIPS = ((273, 279), (324, 325))


def check_complete_image(file: Path) -> None:
    """Check an image file by its header and its end.

    Raises:
        DmlError: if the header isn't an image's, or the image is cut off; names the file.
    """
    check_header(file)
    if not _ends_well(file):
        read_image(file, min_side=1)


def _ends_well(file: Path) -> bool:
    """Whether a file ends as its format says. False for other formats: they are judged by decoding."""
    with file.open("rb") as stored:
        head, size = stored.read(16), os.fstat(stored.fileno()).st_size
        stored.seek(max(0, size - _TAIL))
        tail = stored.read(_TAIL).rstrip(b"\0\r\n ")
    if head.startswith(b"\xff\xd8"):
        return tail.endswith(b"\xff\xd9")
    if head.startswith(b"\x89PNG"):
        return b"IEND\xaeB`\x82" in tail
    if head.startswith(b"GIF8"):
        return tail.endswith(b";")
    if head.startswith(b"BM"):
        return int.from_bytes(head[2:6], "little") <= size
    if head.startswith(b"RIFF"):
        return int.from_bytes(head[4:8], "little") + 8 <= size
    if head.startswith((b"II", b"MM")):
        return _tiff_end(file) <= size
    return False


def _tiff_end(file: Path) -> int:
    """The end of a TIFF's last strip or tile of pixels."""
    with Image.open(file, formats=FORMATS) as image:
        tags = getattr(image, "tag_v2", {})
        return max(
            (
                offset + length
                for offsets, lengths in _STRIPS
                for offset, length in zip(tags.get(offsets, ()), tags.get(lengths, ()))
            ),
            default=0,
        )
