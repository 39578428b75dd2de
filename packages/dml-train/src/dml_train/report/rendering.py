"""Render pages from templates, diagrams for light and dark pages, and thumbnails; pictures are data
URIs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from dml_core import metric_title
from dml_train.extras import extra
from dml_train.files import write_atomically
from dml_train.measure.listing import LEVEL

with extra("report", "a report"):
    import jinja2
    import matplotlib
    import matplotlib.figure

SHOWN = ("recall@1", "recall@10", "r_precision", "map@r", "nmi")  # metrics to show in comparisons
_INK = {"light": "#1f2430", "dark": "#e6e8ee"}
_LINE = {"light": "#1d5fbf", "dark": "#7db4ff"}
_THUMBNAIL = 96  # maximum length of the longer side in pixels
# Marks that differ in shape (matplotlib's name, and the character for the key) and colour. Okabe
# and Ito chose colours that differ for any kind of colour vision; here, yellow is darker, and grey
# is used instead of black.
MARKS = (
    ("o", "●", "#e69f00"),
    ("s", "■", "#56b4e9"),
    ("D", "◆", "#009e73"),
    ("^", "▲", "#cc79a7"),
    ("v", "▼", "#0072b2"),
    ("P", "✚", "#d55e00"),
    ("*", "★", "#b8a800"),
    ("X", "✖", "#888888"),
)


class Figure(NamedTuple):
    """A picture for light pages and for dark pages, with a description in words."""

    light: str  # data URIs
    dark: str
    alt: str  # text for readers who don't see the picture
    caption: str  # text below the picture
    key: Sequence[tuple[str, str, str]] = ()  # symbol, colour and name per mark


def draw_figure(
    draw: Callable[[Any, str, str], None],
    size: tuple[float, float] = (4.6, 2.8),
    form: str = "svg",
    *,
    alt: str,
    caption: str,
    key: Sequence[tuple[str, str, str]] = (),
) -> Figure:
    """Draw a diagram with a transparent background, for light and for dark pages, as ``"svg"`` or
    ``"png"``.

    `draw` is called with the axes, and the colours for text and for a line; `size` is in inches.
    """
    light, dark = (_draw_themed(draw, theme, size, form) for theme in ("light", "dark"))
    return Figure(light, dark, alt, caption, key)


def make_thumbnail(picture: npt.NDArray[np.uint8] | Image.Image, side: int = _THUMBNAIL) -> str:
    """Shrink an array (height, width, 3) or an image to `side` pixels or fewer per side, and return
    a data URI.
    """
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    large = max(image.size) > side
    image.thumbnail((side, side))
    # JPEG shrinks photographs to a tenth; drawings of a few pixels stay exact as PNG.
    return encode_image(image, "jpeg", quality=85) if large else encode_image(image, "png")


def encode_image(image: Image.Image, form: str, **options: Any) -> str:
    """Encode a picture as a data URI, in the format ``"png"`` or ``"jpeg"``."""
    file = BytesIO()
    image.save(file, form, optimize=True, **options)
    return _as_uri(file, form)


def select_evenly(count: int, most: int) -> npt.NDArray[np.int64]:
    """Select at most `most` evenly spaced indices from 0 to count - 1, in ascending order."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def write_page(path: Path, template: str, **contents: Any) -> Path:
    """Render a template with `contents`, which are escaped; write the page, and return the path."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dml_train", "report"),
        autoescape=True,  # class and file names are untrusted
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["zip"] = zip
    environment.filters["metric_title"] = metric_title
    environment.filters["share"] = lambda value: (
        f"{value:.4f}" if isinstance(value, int | float) else "–"
    )
    environment.filters["signed"] = lambda value: f"{value:+.4f}".replace("-", "−")
    environment.filters["p_value"] = lambda value: f"{value:.4f}" if value >= 0.0001 else "< 0.0001"
    page = environment.get_template(template).render(level=LEVEL, shown=SHOWN, **contents)
    # If a file's name isn't UTF-8, the string contains surrogates, which can't be encoded.
    write_atomically(path, lambda file: file.write(page.encode("utf-8", "backslashreplace")))
    return path


def _draw_themed(
    draw: Callable[[Any, str, str], None], theme: str, size: tuple[float, float], form: str
) -> str:
    ink = _INK[theme]
    # Note that pyplot should not be used: it would keep figures, and choose a window system.
    with matplotlib.rc_context({"svg.hashsalt": "dml", "svg.fonttype": "path"}):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        draw(axes, ink, _LINE[theme])
        axes.grid(alpha=0.2, color=ink)
        axes.patch.set_alpha(0.0)
        axes.tick_params(colors=ink, labelsize=8)
        for part in (axes.title, axes.xaxis.label, axes.yaxis.label, axes.yaxis.get_offset_text()):
            part.set_color(ink)
        for edge, spine in axes.spines.items():
            spine.set_visible(edge in ("left", "bottom"))
            spine.set_color(ink)
        file = BytesIO()
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(file, format=form, transparent=True, dpi=140, metadata=metadata)
    return _as_uri(file, "svg+xml" if form == "svg" else form)


def _as_uri(file: BytesIO, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
