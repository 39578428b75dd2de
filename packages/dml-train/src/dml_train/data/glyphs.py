"""The embedded data set: the characters that the fonts inside matplotlib can draw, one image a font face.

No download, no file: the pictures are drawn in a few seconds, the same ones every time.

- A **class** is what a character looks like in DejaVu Sans. Characters whose pictures there are equal (Latin A,
  Greek Alpha, Cyrillic A) are one class, since no network could tell them apart. Blank pictures, control characters
  and private use are left out.
- An **item** is that class in one of the DejaVu and STIX faces: of several merged characters the first by code
  point that the face has. The ink is centred; ink larger than the picture is shrunk to fit.
- A class that fewer than `MIN_FACES` faces can draw is left out, so that every query has matches.
- The classes, in the order of their first code point, go **alternately** to `train` and `test`: every script is
  in both halves, no class is, and no seed decides.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageFont

from dml_core import DmlError
from dml_train.data.array_split import ArraySplit, Jitter
from dml_train.data.image_reader import DrawingReader

SIZE = 32  # pixels a side
FONT_SIZE = 26  # pixels an em
MIN_FACES = 6
_LOOKS_FACE = "DejaVuSans"
_UNDRAWN = {"Cc", "Cf", "Co", "Cs"}  # control, format, private use, surrogate


class Glyphs:
    """A `Dataset` of about 3,400 characters in about 39,000 pictures of 32 × 32, half of the classes for training.

    Args:
        rotation, scale, stretch, shear, shift, stroke, fade: bounds of the augmentation, see `Jitter`.
        max_classes: only so many classes, spread evenly over all; None for all. For quick trials.

    Attributes:
        train, test: the halves. Every class has at least `MIN_FACES` items.
        gallery: None; the test half is its own.
        in_channels: 1.

    Raises:
        DmlError: if matplotlib's fonts aren't where it says.
        ValueError: a bound that isn't one, or fewer than two classes.
    """

    gallery = None
    in_channels = 1

    def __init__(
        self,
        rotation: float = 10.0,
        scale: float = 0.15,
        stretch: float = 0.15,
        shear: float = 0.2,
        shift: float = 2.0,
        stroke: float = 0.5,
        fade: float = 0.3,
        max_classes: int | None = None,
    ) -> None:
        jitter = Jitter(rotation, scale, stretch, shear, shift, stroke, fade)
        drawn = draw_glyphs()
        chosen = np.arange(len(drawn.class_names))
        if max_classes is not None:
            if max_classes < 2:
                raise ValueError(f"max_classes is {max_classes}; expected at least 2, one for each half")
            chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, max_classes).astype(np.int64))]
        self.train = _split(drawn, chosen[0::2], jitter)
        self.test = _split(drawn, chosen[1::2], None)

    @staticmethod
    def image_reader(**options: object) -> DrawingReader:
        """What reads other drawings for a network that was trained on these; no option plays a part."""
        return DrawingReader(SIZE)


class Drawing(NamedTuple):
    """All glyphs: items sorted by class, then by the name of the face."""

    images: npt.NDArray[np.uint8]  # (N, SIZE, SIZE), ink is 255
    labels: npt.NDArray[np.int64]  # (N,)
    class_names: Sequence[str]  # "U+0041 LATIN CAPITAL LETTER A", of the first of the merged characters


@functools.lru_cache(maxsize=1)
def draw_glyphs() -> Drawing:
    """Every class that enough faces can draw; drawn once a process.

    Raises:
        DmlError: if matplotlib's fonts aren't where it says.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = sorted([*folder.glob("DejaVu*.ttf"), *folder.glob("STIX*.ttf")])
    if folder / f"{_LOOKS_FACE}.ttf" not in files:
        raise DmlError(
            f"no font {_LOOKS_FACE}.ttf in {folder}; the data set 'glyphs' is drawn with the fonts that come in "
            "matplotlib's own package. Reinstall it: pip install --force-reinstall matplotlib"
        )
    # The basic layout engine: the complex one is an optional part of Pillow and may differ between machines.
    faces = {
        file.stem: ImageFont.truetype(file, FONT_SIZE, layout_engine=ImageFont.Layout.BASIC) for file in files
    }
    characters = {file.stem: set(FT2Font(str(file)).get_charmap()) for file in files}

    looks: dict[bytes, list[int]] = {}
    for code_point in sorted(characters[_LOOKS_FACE]):
        if unicodedata.category(chr(code_point)) in _UNDRAWN:
            continue
        picture = _draw(faces[_LOOKS_FACE], chr(code_point))
        if picture is not None:
            looks.setdefault(picture.tobytes(), []).append(code_point)

    images: list[npt.NDArray[np.uint8]] = []
    labels: list[int] = []
    class_names: list[str] = []
    for code_points in looks.values():
        pictures = []
        for name, face in faces.items():
            drawable = next((c for c in code_points if c in characters[name]), None)
            picture = None if drawable is None else _draw(face, chr(drawable))
            if picture is not None:
                pictures.append(picture)
        if len(pictures) >= MIN_FACES:
            images.extend(pictures)
            labels.extend([len(class_names)] * len(pictures))
            class_names.append(_name(code_points[0]))
    return Drawing(np.stack(images), np.array(labels, dtype=np.int64), tuple(class_names))


def _draw(face: ImageFont.FreeTypeFont, character: str) -> npt.NDArray[np.uint8] | None:
    """The character's ink in the middle of a picture; None if it has no ink."""
    mask, _ = face.getmask2(character, "L")
    width, height = mask.size
    ink = np.frombuffer(bytes(mask), dtype=np.uint8).reshape(height, width)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if rows.size == 0:
        return None
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    if max(ink.shape) > SIZE:
        height, width = (max(1, round(side * SIZE / max(ink.shape))) for side in ink.shape)
        ink = np.asarray(Image.fromarray(ink).resize((width, height), Image.Resampling.BOX))
    height, width = ink.shape
    top, left = (SIZE - height) // 2, (SIZE - width) // 2
    picture = np.zeros((SIZE, SIZE), dtype=np.uint8)
    picture[top : top + height, left : left + width] = ink
    return picture


def _name(code_point: int) -> str:
    return f"U+{code_point:04X} {unicodedata.name(chr(code_point), '')}".rstrip()


def _split(drawn: Drawing, classes: npt.NDArray[np.int64], jitter: Jitter | None) -> ArraySplit:
    """The items of these classes, with labels counted from 0."""
    items = np.flatnonzero(np.isin(drawn.labels, classes))
    labels = np.searchsorted(classes, drawn.labels[items]).astype(np.int64)
    return ArraySplit(drawn.images[items], labels, tuple(drawn.class_names[c] for c in classes), jitter)
