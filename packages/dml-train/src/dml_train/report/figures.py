"""Figures of the page as data URIs: diagrams for light and for dark pages, curves, and thumbnails."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dml_train.extras import extra
from dml_train.measure.listing import is_count, repeats, title_of

with extra("report", "a report"):
    import matplotlib
    import matplotlib.figure

_INK = {"light": "#1f2430", "dark": "#e6e8ee"}
_LINE = {"light": "#1d5fbf", "dark": "#7db4ff"}
Draw = Callable[[Any, str, str], None]  # (axes, the text's colour, a line's)
Mark = tuple[str, str, str]
_THUMBNAIL = 96  # pixels of the longer side, at most
_POINTS_A_CURVE = 400
# Marks that differ by shape (matplotlib's name, and the character for the key) as well as by colour. The colours are
# Okabe and Ito's, for all kinds of colour vision; darker ones replace the last two.
MARKS: tuple[Mark, ...] = (
    ("o", "●", "#e69f00"),
    ("s", "■", "#56b4e9"),
    ("D", "◆", "#009e73"),
    ("^", "▲", "#cc79a7"),
    ("v", "▼", "#0072b2"),
    ("P", "✚", "#d55e00"),
    ("*", "★", "#b8a800"),
    ("X", "✖", "#888888"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture for light pages and one for dark pages, with their description in words.

    Args:
        light, dark: data URIs.
        alt: text for readers who don't see the pictures.
        caption: text below them.
        key: symbol, colour and name of each mark.
    """

    light: str
    dark: str
    alt: str
    caption: str
    key: Sequence[tuple[str, str, str]] = ()


def make_thumbnail(picture: npt.NDArray[np.uint8] | Image.Image, side: int = _THUMBNAIL) -> str:
    """Shrink a picture, an array (height, width, 3) or an image, to at most `side` pixels a side, as a data URI."""
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    large = max(image.size) > side
    image.thumbnail((side, side))
    # JPEG shrinks photographs to a tenth; drawings of a few pixels stay exact as PNG.
    return encode_image(image, "jpeg", quality=85) if large else encode_image(image, "png")


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, float | None]]]) -> list[Figure]:
    """Draw each value that any run logged at more than one step, in the order of first appearance.

    A value that isn't finite, None, is omitted. Long curves are drawn as means of equal intervals of steps.

    Args:
        runs: name → lines of ``metrics.jsonl``, each a mapping with ``"step"``. At most eight runs.
    """
    names = dict.fromkeys(name for lines in runs.values() for line in lines for name in line)
    figures = [
        _draw_curve(name, runs)
        for name in names
        if name != "step" and not is_count(name) and not repeats(name, names)
    ]
    return [figure for figure in figures if figure is not None]


def draw_twice(draw: Draw, size: tuple[float, float], form: str) -> tuple[str, str]:
    """Draw a diagram with a transparent background for light pages and for dark ones, as data URIs.

    Args:
        draw: draws on the axes, with the colours of text and of a line.
        size: width and height in inches.
        form: ``"svg"`` or ``"png"``.
    """
    return _draw_themed(draw, "light", size, form), _draw_themed(draw, "dark", size, form)


def encode_image(image: Image.Image, form: str, **options: Any) -> str:
    """Encode a picture as a data URI, as ``"png"`` or ``"jpeg"``."""
    file = BytesIO()
    image.save(file, form, optimize=True, **options)
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode()}"


def _draw_curve(name: str, runs: Mapping[str, Sequence[Mapping[str, float | None]]]) -> Figure | None:
    """Draw one value of every run that logged it at more than one step; None if no run did."""
    title = title_of(name)
    series: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], Mark]] = []
    courses, key = [], []
    longest = 1
    for mark, (run, lines) in zip(MARKS, runs.items(), strict=False):
        logged = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if len(logged) < 2:
            continue
        steps, values = np.array(logged, dtype=np.float64).T
        stretch = -(-len(steps) // _POINTS_A_CURVE)
        longest = max(longest, stretch)
        cuts = np.arange(0, len(steps), stretch)
        x, y = (np.add.reduceat(v, cuts) / np.diff([*cuts, len(v)]) for v in (steps, values))
        series.append((x, y, mark))
        course = f"from {values[0]:.4g} to {values[-1]:.4g}"
        courses.append(course if len(runs) == 1 else f"{run} {course}")
        if len(runs) > 1:
            key.append((*mark[1:], run))
    if not series:
        return None

    def draw(axes: Any, ink: str, line: str) -> None:
        for x, y, (marker, _, colour) in series:
            if len(runs) == 1:
                axes.plot(x, y, color=line, linewidth=1.4)
            else:
                # A few marks per line distinguish the runs where colours don't.
                axes.plot(x, y, color=colour, linewidth=1.4, marker=marker, markevery=0.15, markersize=5)
        axes.set_xlabel("step")
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.grid(alpha=0.2, color=ink)

    words = "; ".join(courses)
    return Figure(
        *draw_twice(draw, size=(4.6, 2.8), form="svg"),
        alt=f"{title} over the steps, {words}",
        caption=f"{title}, means of {longest} steps: {words}." if longest > 1 else f"{title}: {words}.",
        key=key,
    )


def _draw_themed(draw: Draw, theme: str, size: tuple[float, float], form: str) -> str:
    ink = _INK[theme]
    # No pyplot: it would keep figures, and choose a window system.
    with matplotlib.rc_context({"svg.hashsalt": "dml", "svg.fonttype": "path"}):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        draw(axes, ink, _LINE[theme])
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
    kind = "svg+xml" if form == "svg" else form
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
