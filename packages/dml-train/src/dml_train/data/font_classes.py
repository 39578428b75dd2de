"""Classes drawn with a user's fonts: which characters are one class, and which drawings are its items."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import DmlError
from dml_train.data.faces import NO_CHARACTER, Face

PLACEHOLDER_USES = 16  # a drawing that so many characters of a face share stands for glyphs that it lacks
UNDRAWN = {"Cc", "Cf", "Co", "Cs"}  # control, format, private use, surrogate
_SCRIPTS = {"all": "", "han": "CJK UNIFIED IDEOGRAPH", "latin": "LATIN "}
_RANGE = re.compile(r"U\+([0-9A-Fa-f]{4,6})(?:-U\+([0-9A-Fa-f]{4,6}))?")


class Drawing(NamedTuple):
    """Drawn characters, sorted by class, then by face."""

    images: npt.NDArray[np.uint8]  # (N, size, size), ink is 255
    labels: npt.NDArray[np.int64]  # (N,)
    class_names: Sequence[str]  # "U+0041 LATIN CAPITAL LETTER A", of the first of the merged characters
    faces: npt.NDArray[np.int64]  # (N,), positions in the list of faces

    def select(self, items: npt.NDArray[np.bool_]) -> Drawing:
        """Return these items, with all class names."""
        return self._replace(images=self.images[items], labels=self.labels[items], faces=self.faces[items])


def collect_drawings(classes: Sequence[tuple[int, Mapping[int, npt.NDArray[np.uint8]]]]) -> Drawing:
    """Collect the drawings of classes, each given as a code point and its pictures by face."""
    return Drawing(
        np.stack([picture for _, pictures in classes for picture in pictures.values()]),
        np.repeat(np.arange(len(classes)), [len(pictures) for _, pictures in classes]),
        tuple(f"U+{c:04X} {unicodedata.name(chr(c), '')}".rstrip() for c, _ in classes),
        np.array([position for _, pictures in classes for position in pictures]),
    )


def select_characters(characters: str | Sequence[str]) -> Callable[[int], bool]:
    """Return the test of a code point's membership in a character set.

    Args:
        characters: ``"all"``, ``"han"``, ``"latin"`` (by the Unicode name), a code point ``"U+4E00"``, a range
            ``"U+4E00-U+9FFF"``, or several of them.

    Raises:
        ValueError: another name, or a range whose end precedes its beginning.
    """
    prefixes: list[str] = []
    ranges: list[tuple[int, int]] = []
    for name in [characters] if isinstance(characters, str) else characters:
        if name in _SCRIPTS:
            prefixes.append(_SCRIPTS[name])
        elif (match := _RANGE.fullmatch(name)) and int(match[1], 16) <= int(match[2] or match[1], 16):
            ranges.append((int(match[1], 16), int(match[2] or match[1], 16)))
        else:
            raise ValueError(
                f"characters has {name!r}; expected all, han, latin, or a range such as U+4E00-U+9FFF"
            )
    if not prefixes and not ranges:
        raise ValueError('characters is empty; expected "all", or for example ["han", "U+3041-U+3096"]')

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
    faces: Sequence[Face], belongs: Callable[[int], bool], min_images: int, counted: int | None = None
) -> Drawing:
    """Draw the characters of a set in all faces, and group them into classes.

    - A face's sign for a missing glyph is no drawing, nor is a drawing that `PLACEHOLDER_USES` characters share,
      whatever the face's table claims.
    - Characters that **any** face draws identically are one class, and so are those linked by a chain of such pairs.
      A face that lacks a form of a character often draws another's, so no network could distinguish them there.
    - A class has each of its drawings once: fonts copy one another's glyphs.
    - Of a class's characters a face draws the first, by code point, that it has.
    - A class with fewer than `min_images` drawings in the `counted` faces is omitted.

    Args:
        faces: at least one; all of one size.
        belongs: tells whether a code point is in the character set.
        min_images: at least 1.
        counted: the first so many faces count for `min_images`; None: all.

    Raises:
        DmlError: if fewer than two classes remain.
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
        first: dict[bytes, int] = {}  # the first face that has each drawing
        for position, code_point in code_points.items():
            first.setdefault(by_face[position][code_point].tobytes(), position)
        if sum(position < counted for position in first.values()) >= min_images:
            classes.append((root, {place: by_face[place][code_points[place]] for place in first.values()}))
    if len(classes) < 2:
        drawn_by_most = max((sum(face < counted for face in row) for row in drawn.values()), default=0)
        raise DmlError(
            f"fonts: {len(classes)} classes have {min_images} different drawings; expected at least two such classes. "
            f"The {counted} faces draw {len(drawn):,} classes of the character set, each in at most "
            f"{drawn_by_most} faces: add fonts, lower min_faces, or choose other characters"
        )
    return collect_drawings(classes)


def _draw_face(face: Face, belongs: Callable[[int], bool]) -> dict[int, npt.NDArray[np.uint8]]:
    """Draw the characters of the set that the face has, by code point, without the signs for missing glyphs."""
    drawn = {c: p for c in face.characters if belongs(c) and (p := face.draw(chr(c))) is not None}
    uses = Counter(picture.tobytes() for picture in drawn.values())
    if (missing := face.draw(NO_CHARACTER)) is not None:
        uses[missing.tobytes()] = PLACEHOLDER_USES
    return {c: picture for c, picture in drawn.items() if uses[picture.tobytes()] < PLACEHOLDER_USES}


def _merge_identical(by_face: Sequence[dict[int, npt.NDArray[np.uint8]]]) -> dict[int, int]:
    """Link code points that a face draws identically: each to a smaller one of its class, or to itself."""
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
