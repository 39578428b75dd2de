"""The data set 'glyphs': characters drawn using fonts, with an image per font face.

By default, the data set uses matplotlib's fonts and doesn't need a download: drawing the images
takes a few seconds, and the images are always identical.

- A **class** is a character's image in DejaVu Sans. Characters with identical images there (Latin
  A, Greek Alpha, Cyrillic A) form a class. Blank images, control characters and private-use
  characters are omitted.
- An **item** is the image of a class in a DejaVu or STIX face. If characters are merged, the face
  draws the first supported character by code point. The ink is centred; ink larger than the image
  is shrunk to fit.
- A class that fewer than `MIN_FACES` faces can draw is omitted, so that queries can be matched.
- Classes, sorted by first code point, go **alternately** to `train` and `test`: both halves contain
  all scripts, classes don't overlap, and a seed isn't used.

For a user's fonts, see `draw_classes` for the definitions of class and item; the halves alternate,
too.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core import DmlError
from dml_train.data.array_split import ArraySplit, Jitter
from dml_train.data.decoding import ImageSource, read_image
from dml_train.data.fonts import (
    UNDRAWN,
    Drawing,
    Face,
    collect_drawings,
    draw_classes,
    open_faces,
    select_characters,
)
from dml_train.data.preparation import ImageSplit
from dml_train.data.prepare import fit_drawing
from dml_train.extras import extra

with extra("glyphs", "the data set 'glyphs'"):
    import matplotlib

SIZE = 32  # default side in pixels
MIN_FACES = 6
_CLASS_FACE = "DejaVuSans"  # the face used to define the classes


class Glyphs:
    """A `Dataset` of drawn characters; half of the classes train.

    By default about 3,400 characters in about 39,000 images of 32 × 32.

    Args:
        rotation, scale, stretch, shear, shift, stroke, fade: bounds of the augmentation, see
            `Jitter`.
        max_classes: number of classes for quick trials, spread evenly over all classes; by default,
            all are used.
        fonts: font files or glob patterns, see `open_faces`; by default, matplotlib's fonts are
            used.
        query_fonts: fonts for the queries, given like `fonts`. The test half's drawings in `fonts`
            then become the gallery, which also contains classes that query fonts don't draw. If
            empty, a gallery isn't used.
        characters: the character set, if `fonts` is given; see `select_characters`.
        min_faces: minimum number of different drawings of a class by `fonts`, if `fonts` is given.
        size: side of the images in pixels.

    Raises:
        DmlError: if fonts are missing or draw fewer than two classes.
        ValueError: if a bound is out of range, there are fewer than two classes, or an option needs
            `fonts`.
    """

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
        fonts: Sequence[str] | None = None,
        query_fonts: Sequence[str] = (),
        characters: str | Sequence[str] = "all",
        min_faces: int = MIN_FACES,
        size: int = SIZE,
    ) -> None:
        jitter = Jitter(rotation, scale, stretch, shear, shift, stroke, fade)
        if max_classes is not None and max_classes < 2:
            raise ValueError(
                f"max_classes is {max_classes}; expected at least 2, one for each half"
            )
        if not 8 <= size <= 512:
            raise ValueError(f"size is {size}; expected 8 to 512 pixels a side")
        if min_faces < 2:
            raise ValueError(f"min_faces is {min_faces}; expected at least 2, a query and a match")
        if fonts is None:
            if query_fonts or characters != "all" or min_faces != MIN_FACES:
                raise ValueError(
                    'query_fonts, characters and min_faces need fonts = ["FOLDER/*.ttf"]'
                )
            drawing, queries = draw_glyphs(size), None
        else:
            if isinstance(fonts, str) or isinstance(query_fonts, str):
                raise ValueError(
                    'fonts and query_fonts are lists of patterns; write ["FOLDER/*.ttf"]'
                )
            kind = characters if isinstance(characters, str) else tuple(characters)
            drawing, queries = draw_user_fonts(
                tuple(fonts), tuple(query_fonts), kind, min_faces, size
            )
        chosen = np.arange(len(drawing.class_names))
        if max_classes is not None:
            count = min(max_classes, len(chosen))
            chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, count).astype(np.int64))]
        self.train = _select_classes(drawing, chosen[0::2], jitter)
        self.test = _select_classes(drawing if queries is None else queries, chosen[1::2], None)
        self.gallery = None if queries is None else _select_classes(drawing, chosen[1::2], None)
        if len(self.test) == 0:
            raise DmlError(
                "query_fonts don't draw any character of the test classes; add a font that does"
            )

    @staticmethod
    def image_reader(size: int = SIZE, **_: object) -> DrawingReader:
        """Return the reader of a user's drawings for a network trained on glyphs."""
        return DrawingReader(size)


class DrawingReader:
    """An `ImageReader` for glyphs: dark ink on a light background, resized to `size` × `size`
    pixels.
    """

    in_channels = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.input_shape = (1, size, size)

    def of_images(self, images: Sequence[ImageSource]) -> ImageSplit:
        """Return a split of these images in grey."""
        return ImageSplit(images, self.prepare, self.render)

    def prepare(self, images: Sequence[ImageSource]) -> Tensor:
        """Prepare images for the network, (N, 1, size, size) float32, ink in [0, 1] on a background
        of 0.
        """
        pictures = np.stack([fit_drawing(read_image(image), self.size) for image in images])
        return torch.from_numpy(255 - pictures)[:, None].to(torch.float32).div_(255.0)

    def render(self, image: ImageSource) -> npt.NDArray[np.uint8]:
        """Render an image as the network sees it, (size, size, 3) uint8."""
        return np.repeat(fit_drawing(read_image(image), self.size)[:, :, None], 3, axis=2)

    def describe(self) -> dict[str, Any]:
        """Describe the steps from an image to the input."""
        return {
            "kind": "drawing",
            "options": {"size": self.size},
            "decode": (
                "at full size, upright by its EXIF data, grey, 8 bits per pixel; transparent parts "
                "white"
            ),
            "resize": (
                f"bicubic, in proportion, to fit into {self.size} x {self.size}; padded with white"
            ),
            "channels": "1: darkness",
            "normalize": "input = (255 - pixel) / 255",
        }


@functools.lru_cache(maxsize=1)
def draw_glyphs(size: int = SIZE) -> Drawing:
    """Draw all classes that enough of matplotlib's faces can draw, once per process."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = sorted([*folder.glob("DejaVu*.ttf"), *folder.glob("STIX*.ttf")])
    if folder / f"{_CLASS_FACE}.ttf" not in files:
        raise DmlError(
            f"no font {_CLASS_FACE}.ttf in {folder}; the data set 'glyphs' is drawn using the "
            "fonts of matplotlib's package. Reinstall it: pip install --force-reinstall matplotlib"
        )
    faces = [Face(file, size) for file in files]
    class_face = next(face for face in faces if face.name == _CLASS_FACE)

    merged: dict[bytes, list[int]] = {}  # code points by image in the class face
    for code_point in sorted(class_face.characters):
        if unicodedata.category(chr(code_point)) in UNDRAWN:
            continue
        if (picture := class_face.draw(chr(code_point))) is not None:
            merged.setdefault(picture.tobytes(), []).append(code_point)

    classes = []
    for code_points in merged.values():
        pictures = {}
        for position, face in enumerate(faces):
            drawable = next((c for c in code_points if c in face.characters), None)
            if drawable is not None and (picture := face.draw(chr(drawable))) is not None:
                pictures[position] = picture
        if len(pictures) >= MIN_FACES:
            classes.append((code_points[0], pictures))
    return collect_drawings(classes)


@functools.lru_cache(maxsize=1)
def draw_user_fonts(
    fonts: tuple[str, ...],
    query_fonts: tuple[str, ...],
    characters: str | tuple[str, ...],
    min_faces: int,
    size: int,
) -> tuple[Drawing, Drawing | None]:
    """Draw a character set once per process, with `fonts` and, if given, with `query_fonts`.

    Raise a `DmlError` if a pattern doesn't match any font, a font is in both lists, or there are
    fewer than 2 classes.
    """
    belongs = select_characters(characters)
    faces = open_faces(fonts, size)
    query_faces = open_faces(query_fonts, size) if query_fonts else []
    if both := {face.name for face in faces} & {face.name for face in query_faces}:
        raise DmlError(f"{min(both)} is in both fonts and query_fonts; remove it from either list")
    drawing = draw_classes([*faces, *query_faces], belongs, min_faces, len(faces))
    if not query_fonts:
        return drawing, None
    of_queries = drawing.faces >= len(faces)
    return drawing.select(~of_queries), drawing.select(of_queries)


def _select_classes(
    drawing: Drawing, classes: npt.NDArray[np.int64], jitter: Jitter | None
) -> ArraySplit:
    """Return the items of these classes, with labels from 0."""
    items = np.flatnonzero(np.isin(drawing.labels, classes))
    labels = np.searchsorted(classes, drawing.labels[items]).astype(np.int64)
    return ArraySplit(
        drawing.images[items], labels, tuple(drawing.class_names[c] for c in classes), jitter
    )
