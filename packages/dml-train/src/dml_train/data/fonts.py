"""Draw characters with the faces of font files, and group the drawings of a user's fonts into
classes.
"""

from __future__ import annotations

import glob
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFont

from dml_core import DmlError
from dml_train.extras import extra

with extra("glyphs", "the data set 'glyphs'"):
    from fontTools.ttLib import TTFont, TTLibError
    from fontTools.ttLib.ttCollection import TTCollection

_EM = 26 / 32  # pixels per em, as a share of the image's side
NO_CHARACTER = "\uffff"  # not in any font, so a face draws the sign for a missing glyph
PLACEHOLDER_USES = 16  # if 16 characters of a face share a drawing, it is a sign for missing glyphs
UNDRAWN = {"Cc", "Cf", "Co", "Cs"}  # control, format, private use, surrogate
_SCRIPTS = {"all": "", "han": "CJK UNIFIED IDEOGRAPH", "latin": "LATIN "}
_RANGE = re.compile(r"U\+([0-9A-Fa-f]{4,6})(?:-U\+([0-9A-Fa-f]{4,6}))?")


class Face:
    """A face in a TrueType or OpenType font file, to draw images with sides of `size` pixels.

    `index` is the face's position in a collection, from 0; None for a file with a single face.
    """

    def __init__(self, file: Path, size: int, index: int | None = None) -> None:
        self.name = file.stem if index is None else f"{file.stem}#{index}"
        self.size = size
        # Use the basic layout engine, since the complex engine is optional in Pillow and may differ
        # between machines.
        self._font = ImageFont.truetype(
            file, round(size * _EM), index=index or 0, layout_engine=ImageFont.Layout.BASIC
        )
        with TTFont(file, fontNumber=-1 if index is None else index, lazy=True) as tables:
            self.characters = frozenset(tables.getBestCmap() or ())

    def draw(self, character: str) -> npt.NDArray[np.uint8] | None:
        """Draw a character, (size, size), ink is 255; return None if the character is blank.

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
    """Open the faces of all font files that match; return faces only once, sorted by file and
    index.

    Patterns are files, or glob patterns with ``**`` for any folders; use ``FILE#N`` for only face N
    of a collection. Raise a `DmlError` if a pattern doesn't match any file, a file isn't a font, or
    a face isn't in the collection.
    """
    if not patterns:
        raise DmlError("fonts is empty; expected font files, such as /usr/share/fonts/**/*.ttf")
    chosen: set[tuple[Path, int | None]] = set()
    for pattern in patterns:
        name, _, number = pattern.rpartition("#") if "#" in pattern else (pattern, "", "")
        # Path.glob doesn't support absolute patterns.
        files = [Path(file) for file in glob.glob(str(Path(name).expanduser()), recursive=True)]  # noqa: PTH207
        if not files:
            raise DmlError(
                f"fonts: no file matches {pattern!r}; expected font files, such as "
                "/usr/share/fonts/**/*.ttf"
            )
        for file in files:
            chosen.update((file, index) for index in _face_indices(file, number))
    order = sorted(chosen, key=lambda pair: (pair[0], pair[1] or 0))
    faces = [Face(file, size, index) for file, index in order]
    names = [face.name for face in faces]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DmlError(f"fonts: more than one file is named {twice}; give the path of only one")
    return faces


def _face_indices(file: Path, number: str) -> Sequence[int | None]:
    """Return the indices of the faces to open in a file; [None] if the file contains a single
    face.
    """
    try:
        with file.open("rb") as stream:  # fontTools would not close the file when it fails
            if file.suffix.lower() in (".ttc", ".otc"):
                count = len(TTCollection(stream, lazy=True))
            else:
                TTFont(stream, lazy=True)
                count = 0
    except (OSError, TTLibError) as error:
        raise DmlError(
            f"fonts: {file} can't be read as a font: {error}; remove it from the pattern"
        ) from error
    if not number:
        return range(count) if count else [None]
    if not number.isdecimal() or int(number) >= count:
        has = f"its faces are 0 to {count - 1}" if count else "it is not a collection (.ttc)"
        raise DmlError(f"fonts: {file} doesn't contain face {number!r}: {has}")
    return [int(number)]


class Drawing(NamedTuple):
    """Drawn characters, sorted by class, then by face."""

    images: npt.NDArray[np.uint8]  # (N, size, size), ink is 255
    labels: npt.NDArray[np.int64]  # (N,)
    class_names: Sequence[
        str
    ]  # "U+0041 LATIN CAPITAL LETTER A", for the first of the merged characters
    faces: npt.NDArray[np.int64]  # (N,), positions in the list of faces

    def select(self, items: npt.NDArray[np.bool_]) -> Drawing:
        """Return these items, with all class names."""
        return self._replace(
            images=self.images[items], labels=self.labels[items], faces=self.faces[items]
        )


def collect_drawings(classes: Sequence[tuple[int, Mapping[int, npt.NDArray[np.uint8]]]]) -> Drawing:
    """Collect the drawings of classes; a class is a code point, with pictures by face."""
    return Drawing(
        np.stack([picture for _, pictures in classes for picture in pictures.values()]),
        np.repeat(np.arange(len(classes)), [len(pictures) for _, pictures in classes]),
        tuple(f"U+{c:04X} {unicodedata.name(chr(c), '')}".rstrip() for c, _ in classes),
        np.array([position for _, pictures in classes for position in pictures]),
    )


def select_characters(characters: str | Sequence[str]) -> Callable[[int], bool]:
    """Return a function that tells whether a code point is in a character set.

    The set is ``"all"``, ``"han"``, ``"latin"`` (by the Unicode name), a code point ``"U+4E00"``, a
    range ``"U+4E00-U+9FFF"``, or a list of these. Raise a `ValueError` for any other name.
    """
    prefixes: list[str] = []
    ranges: list[tuple[int, int]] = []
    for name in [characters] if isinstance(characters, str) else characters:
        if name in _SCRIPTS:
            prefixes.append(_SCRIPTS[name])
        elif (match := _RANGE.fullmatch(name)) and int(match[1], 16) <= int(
            match[2] or match[1], 16
        ):
            ranges.append((int(match[1], 16), int(match[2] or match[1], 16)))
        else:
            raise ValueError(
                f"characters has {name!r}; expected all, han, latin, or a range such as "
                "U+4E00-U+9FFF"
            )
    if not prefixes and not ranges:
        raise ValueError(
            'characters is empty; expected "all", or for example ["han", "U+3041-U+3096"]'
        )

    def belongs(code_point: int) -> bool:
        character = chr(code_point)
        if unicodedata.category(character) in UNDRAWN:
            return False
        name = unicodedata.name(character, "")
        return any(name.startswith(prefix) for prefix in prefixes) or any(
            first <= code_point <= last for first, last in ranges
        )

    return belongs


def draw_classes(
    faces: Sequence[Face],
    belongs: Callable[[int], bool],
    min_images: int,
    counted: int | None = None,
) -> Drawing:
    """Draw a character set in all faces, and group drawings into classes; raise a `DmlError` for
    fewer than 2.

    - Omit a face's sign for a missing glyph, and any drawing that `PLACEHOLDER_USES` characters
      share.
    - Characters that **at least one** face draws identically form a class, as do chains of such
      pairs, since a face that lacks a form of a character often draws a different form instead.
    - Remove duplicate drawings from a class, since fonts copy glyphs from each other.
    - When a face draws more than one character of a class, use the first by code point.
    - Omit a class with fewer than `min_images` drawings.

    Args:
        faces: faces of the same size; must not be empty.
        belongs: tells whether a code point is in the character set.
        min_images: minimum number of drawings per class; must be positive.
        counted: count only drawings of the first `counted` faces for `min_images`; by default, all
            faces are used.
    """
    counted = len(faces) if counted is None else counted
    by_face = [_draw_face(face, belongs) for face in faces]
    roots = _merge_identical(by_face)

    drawn: dict[int, dict[int, int]] = {}  # by class and face: the code point to draw
    for position, pictures in enumerate(by_face):
        for code_point in sorted(pictures):
            drawn.setdefault(_find_root(roots, code_point), {}).setdefault(position, code_point)

    classes = []
    for root, code_points in sorted(drawn.items()):
        first: dict[bytes, int] = {}  # the first face by drawing
        for position, code_point in code_points.items():
            first.setdefault(by_face[position][code_point].tobytes(), position)
        if sum(position < counted for position in first.values()) >= min_images:
            classes.append(
                (root, {place: by_face[place][code_points[place]] for place in first.values()})
            )
    if len(classes) < 2:
        drawn_by_most = max(
            (sum(face < counted for face in row) for row in drawn.values()), default=0
        )
        raise DmlError(
            f"fonts: {len(classes)} classes have {min_images} different drawings; expected at "
            f"least two such classes. The {counted} faces draw {len(drawn):,} classes of the "
            f"character set, each in at most {drawn_by_most} faces: add fonts, lower min_faces, or "
            "choose other characters"
        )
    return collect_drawings(classes)


def _draw_face(face: Face, belongs: Callable[[int], bool]) -> dict[int, npt.NDArray[np.uint8]]:
    """Draw the characters of the set that are in the face, by code point; exclude signs for missing
    glyphs.
    """
    drawn = {c: p for c in face.characters if belongs(c) and (p := face.draw(chr(c))) is not None}
    uses = Counter(picture.tobytes() for picture in drawn.values())
    if (missing := face.draw(NO_CHARACTER)) is not None:
        uses[missing.tobytes()] = PLACEHOLDER_USES
    return {
        c: picture for c, picture in drawn.items() if uses[picture.tobytes()] < PLACEHOLDER_USES
    }


def _merge_identical(by_face: Sequence[dict[int, npt.NDArray[np.uint8]]]) -> dict[int, int]:
    """Link code points to a smaller code point that a face draws identically, or to themselves."""
    roots = {code_point: code_point for pictures in by_face for code_point in pictures}
    for pictures in by_face:
        first: dict[bytes, int] = {}
        for code_point in sorted(pictures):
            one = _find_root(roots, first.setdefault(pictures[code_point].tobytes(), code_point))
            other = _find_root(roots, code_point)
            roots[max(one, other)] = min(one, other)
    return roots


def _find_root(roots: dict[int, int], code_point: int) -> int:
    while roots[code_point] != code_point:
        code_point = roots[code_point]
    return code_point
