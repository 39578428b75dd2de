"""The built-in data set: the characters that matplotlib's fonts can draw, one image per font face.

It needs no download and no file: the images are drawn in a few seconds, identical each time.

- A **class** is a character's image in DejaVu Sans. Characters with identical images there (Latin A, Greek Alpha,
  Cyrillic A) form one class, since no network could distinguish them. Blank images, control characters and private
  use are omitted.
- An **item** is the image of that class in one of the DejaVu and STIX faces: of several merged characters, the first
  by code point that the face has. The ink is centred; ink larger than the image is shrunk to fit.
- A class that fewer than `MIN_FACES` faces can draw is omitted, so that every query has matches.
- The classes, in the order of their first code point, go **alternately** to `train` and `test`: both halves contain
  every script, no class is in both, and no seed plays a role.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFont

from dml_core import DmlError
from dml_train.data.array_split import ArraySplit, Jitter
from dml_train.data.image_reader import DrawingReader
from dml_train.extras import extra

with extra("glyphs", "the data set 'glyphs'"):
    import matplotlib
    from matplotlib.ft2font import FT2Font

SIZE = 32  # pixels a side
FONT_SIZE = 26  # pixels an em
MIN_FACES = 6
_CLASS_FACE = "DejaVuSans"  # its images define the classes
_UNDRAWN = {"Cc", "Cf", "Co", "Cs"}  # control, format, private use, surrogate


class Glyphs:
    """A `Dataset` of about 3,400 characters in about 39,000 images of 32 × 32; half of the classes train.

    Args:
        rotation, scale, stretch, shear, shift, stroke, fade: bounds of the augmentation, see `Jitter`.
        max_classes: number of classes, spread evenly over all, for quick trials; None: all.

    Attributes:
        train, test: the halves. Every class has at least `MIN_FACES` items.
        gallery: None; the test half is its own gallery.
        in_channels: 1.

    Raises:
        DmlError: if matplotlib's fonts are missing.
        ValueError: a bound out of its range, or fewer than two classes.
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
        drawing = draw_glyphs()
        chosen = np.arange(len(drawing.class_names))
        if max_classes is not None:
            if max_classes < 2:
                raise ValueError(f"max_classes is {max_classes}; expected at least 2, one for each half")
            count = min(max_classes, len(chosen))
            chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, count).astype(np.int64))]
        self.train = _select_classes(drawing, chosen[0::2], jitter)
        self.test = _select_classes(drawing, chosen[1::2], None)

    @staticmethod
    def image_reader(**options: object) -> DrawingReader:
        """Return the reader of a user's drawings for a network trained on glyphs; it ignores all options."""
        return DrawingReader(SIZE)


class Drawing(NamedTuple):
    """All glyphs, sorted by class, then by the name of the face."""

    images: npt.NDArray[np.uint8]  # (N, SIZE, SIZE), ink is 255
    labels: npt.NDArray[np.int64]  # (N,)
    class_names: Sequence[str]  # "U+0041 LATIN CAPITAL LETTER A", of the first of the merged characters


@functools.lru_cache(maxsize=1)
def draw_glyphs() -> Drawing:
    """Draw every class that enough faces can draw, once per process.

    Raises:
        DmlError: if matplotlib's fonts are missing.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = sorted([*folder.glob("DejaVu*.ttf"), *folder.glob("STIX*.ttf")])
    if folder / f"{_CLASS_FACE}.ttf" not in files:
        raise DmlError(
            f"no font {_CLASS_FACE}.ttf in {folder}; the data set 'glyphs' is drawn with the fonts of matplotlib's "
            "package. Reinstall it: pip install --force-reinstall matplotlib"
        )
    # The basic layout engine, since the complex one is optional in Pillow and may differ between machines.
    faces = {
        file.stem: ImageFont.truetype(file, FONT_SIZE, layout_engine=ImageFont.Layout.BASIC) for file in files
    }
    characters = {file.stem: set(FT2Font(str(file)).get_charmap()) for file in files}

    merged: dict[bytes, list[int]] = {}  # code points by their image in the class face
    for code_point in sorted(characters[_CLASS_FACE]):
        if unicodedata.category(chr(code_point)) in _UNDRAWN:
            continue
        picture = _draw(faces[_CLASS_FACE], chr(code_point))
        if picture is not None:
            merged.setdefault(picture.tobytes(), []).append(code_point)

    images: list[npt.NDArray[np.uint8]] = []
    labels: list[int] = []
    class_names: list[str] = []
    for code_points in merged.values():
        pictures = []
        for name, face in faces.items():
            drawable = next((c for c in code_points if c in characters[name]), None)
            picture = None if drawable is None else _draw(face, chr(drawable))
            if picture is not None:
                pictures.append(picture)
        if len(pictures) >= MIN_FACES:
            images.extend(pictures)
            labels.extend([len(class_names)] * len(pictures))
            class_names.append(_describe(code_points[0]))
    return Drawing(np.stack(images), np.array(labels, dtype=np.int64), tuple(class_names))


def _draw(face: ImageFont.FreeTypeFont, character: str) -> npt.NDArray[np.uint8] | None:
    """Draw a character's ink in the middle of an image; return None if it has no ink."""
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


def _describe(code_point: int) -> str:
    return f"U+{code_point:04X} {unicodedata.name(chr(code_point), '')}".rstrip()


def _select_classes(drawing: Drawing, classes: npt.NDArray[np.int64], jitter: Jitter | None) -> ArraySplit:
    """Return the items of these classes, with labels from 0."""
    items = np.flatnonzero(np.isin(drawing.labels, classes))
    labels = np.searchsorted(classes, drawing.labels[items]).astype(np.int64)
    return ArraySplit(drawing.images[items], labels, tuple(drawing.class_names[c] for c in classes), jitter)
