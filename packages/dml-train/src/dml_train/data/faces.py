"""Font faces, and the drawing of a character's ink in the middle of a square image."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFont

from dml_core import DmlError
from dml_train.extras import extra

with extra("glyphs", "the data set 'glyphs'"):
    from fontTools.ttLib import TTFont, TTLibError
    from fontTools.ttLib.ttCollection import TTCollection

_EM = 26 / 32  # pixels an em, as a share of the image's side
NO_CHARACTER = "\uffff"  # by definition in no font: it is drawn as the face's sign for a missing glyph


class Face:
    """A face of a font file, which draws images of one size.

    Args:
        file: TrueType or OpenType, or a collection of them.
        size: pixels a side.
        index: the face's position in a collection, from 0; None for a file of one face.

    Attributes:
        name: the file's name without suffix; in a collection with ``#index`` behind it.
        characters: the code points that the face claims to draw.
    """

    def __init__(self, file: Path, size: int, index: int | None = None) -> None:
        self.name = file.stem if index is None else f"{file.stem}#{index}"
        self.size = size
        # The basic layout engine, since the complex one is optional in Pillow and may differ between machines.
        self._font = ImageFont.truetype(
            file, round(size * _EM), index=index or 0, layout_engine=ImageFont.Layout.BASIC
        )
        with TTFont(file, fontNumber=-1 if index is None else index, lazy=True) as tables:
            self.characters = frozenset(tables.getBestCmap() or ())

    def draw(self, character: str) -> npt.NDArray[np.uint8] | None:
        """Draw a character, (size, size), ink is 255; return None if it has no ink.

        Ink larger than the image is shrunk to fit.
        """
        size = self.size
        mask, _ = self._font.getmask2(character, "L")
        width, height = mask.size
        ink = np.frombuffer(bytes(mask), dtype=np.uint8).reshape(height, width)
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        if rows.size == 0:
            return None
        ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        if max(ink.shape) > size:
            height, width = (max(1, round(side * size / max(ink.shape))) for side in ink.shape)
            ink = np.asarray(Image.fromarray(ink).resize((width, height), Image.Resampling.BOX))
        height, width = ink.shape
        top, left = (size - height) // 2, (size - width) // 2
        picture = np.zeros((size, size), dtype=np.uint8)
        picture[top : top + height, left : left + width] = ink
        return picture


def open_faces(patterns: Sequence[str], size: int) -> list[Face]:
    """Open the faces of the font files that match.

    Args:
        patterns: files, or glob patterns with ``**`` for any folders; ``FILE#N`` is face N of a collection alone,
            and a collection without ``#N`` gives all its faces.
        size: pixels a side of the images.

    Returns:
        The faces, sorted by file and index; a face that several patterns name, once.

    Raises:
        DmlError: a pattern without a file, a file that is no font, or a face that a collection doesn't have.
    """
    if not patterns:
        raise DmlError("fonts is empty; expected font files, such as /usr/share/fonts/**/*.ttf")
    chosen: set[tuple[Path, int | None]] = set()
    for pattern in patterns:
        name, _, number = pattern.rpartition("#") if "#" in pattern else (pattern, "", "")
        # Path.glob takes no absolute pattern.
        files = [Path(file) for file in glob.glob(str(Path(name).expanduser()), recursive=True)]  # noqa: PTH207
        if not files:
            raise DmlError(
                f"fonts: no file matches {pattern!r}; expected font files, such as /usr/share/fonts/**/*.ttf"
            )
        for file in files:
            chosen.update((file, index) for index in _face_indices(file, number))
    order = sorted(chosen, key=lambda pair: (pair[0], pair[1] or 0))
    faces = [Face(file, size, index) for file, index in order]
    names = [face.name for face in faces]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DmlError(f"fonts: two files are named {twice}; give the path of one of them")
    return faces


def _face_indices(file: Path, number: str) -> Sequence[int | None]:
    """Return the faces to open in a file: [None] if it is a font of one face."""
    try:
        with file.open("rb") as stream:  # which fontTools leaves open if it fails
            if file.suffix.lower() in (".ttc", ".otc"):
                count = len(TTCollection(stream, lazy=True))
            else:
                TTFont(stream, lazy=True)
                count = 0
    except (OSError, TTLibError) as error:
        raise DmlError(
            f"fonts: {file} can't be read as a font: {error}; leave it out of the pattern"
        ) from error
    if not number:
        return range(count) if count else [None]
    if not number.isdecimal() or int(number) >= count:
        has = f"its faces are 0 to {count - 1}" if count else "it is no collection (.ttc)"
        raise DmlError(f"fonts: {file} has no face {number!r}: {has}")
    return [int(number)]
