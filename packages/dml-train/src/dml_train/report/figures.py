"""Pictures for the page, as data URIs: curves and maps drawn twice, for light and dark pages; thumbnails.

Shapes: `N` items, `D` embedding dimension.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
import numpy.typing as npt
from PIL import Image

_INK = {"light": "#1f2430", "dark": "#e6e8ee"}
_LINE = {"light": "#1d5fbf", "dark": "#7db4ff"}
_THUMBNAIL = 96  # pixels of the longer side, at most
_POINTS_A_CURVE = 400
_CELLS = (28, 18)  # across and down, of the map of pictures
_CELL = 36  # pixels
# How marked classes are told apart: by shape (matplotlib's name, and the character for the key) as well as by colour.
# The colours are Okabe and Ito's, for all kinds of colour vision, the last two replaced by darker ones.
_MARKS = (
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
    """One picture for light pages and one for dark ones, and what they say in words.

    Args:
        light, dark: data URIs.
        alt: for whoever doesn't see them.
        caption: below them.
        key: symbol, colour and name of what is marked.
    """

    light: str
    dark: str
    alt: str
    caption: str
    key: Sequence[tuple[str, str, str]] = ()


def thumbnail(picture: npt.NDArray[np.uint8]) -> str:
    """A small version of a picture (height, width, 3), as a data URI."""
    image = Image.fromarray(picture)
    large = max(image.size) > _THUMBNAIL
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    # Photographs shrink to a tenth as JPEG; drawings of a few pixels are best left as they are.
    return _uri(image, "jpeg", quality=85) if large else _uri(image, "png")


def curves(lines: Sequence[Mapping[str, float]]) -> list[Figure]:
    """A curve for each value that was logged at more than one step, in the order of first appearance.

    Long curves are drawn as means of equal stretches of steps.

    Args:
        lines: one mapping a line of ``metrics.jsonl``, ``"step"`` included.
    """
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    figures = []
    for name in names:
        steps, values = np.array(
            [(line["step"], line[name]) for line in lines if name in line], dtype=np.float64
        ).T
        if len(steps) < 2:
            continue
        title = name.removeprefix("evaluation/").replace("recall/", "Recall@")
        stretch = -(-len(steps) // _POINTS_A_CURVE)
        cuts = np.arange(0, len(steps), stretch)
        x, y = (np.add.reduceat(v, cuts) / np.diff([*cuts, len(v)]) for v in (steps, values))
        caption = f"{title}, means of {stretch} steps" if stretch > 1 else title
        figures.append(_curve(x, y, title, caption, f"from {values[0]:.4g} to {values[-1]:.4g}"))
    return figures


def map_of_points(
    points_N2: npt.NDArray[np.float64],
    labels_N: npt.NDArray[np.int64],
    named: Mapping[int, str],
    share: float,
) -> Figure:
    """All items as points, and those of a few classes marked.

    Args:
        points_N2: where the items are, see `principal_plane`.
        labels_N: the items' classes.
        named: the marked classes' names by label; at most eight.
        share: of the variance, that the plane holds.
    """

    marks = list(zip(_MARKS, named.items(), strict=False))

    def draw(axes: Any, ink: str, line: str) -> None:
        axes.set_axis_off()
        axes.scatter(*points_N2.T, s=2, color=ink, alpha=0.12, linewidths=0)
        for (marker, _, colour), (label, _) in marks:
            chosen = points_N2[labels_N == label]
            axes.scatter(*chosen.T, s=34, marker=marker, color=colour, edgecolors=ink, linewidths=0.5)

    marked = ", ".join(named.values())
    return Figure(
        _draw(draw, "light", size=(6.4, 5.2), form="png"),
        _draw(draw, "dark", size=(6.4, 5.2), form="png"),
        alt=f"Scatter plot of {len(points_N2)} embeddings in their principal plane; marked: {marked}",
        caption=f"All {len(points_N2):,} test embeddings, normalised, in the plane of their two largest principal "
        f"components, which hold {share:.0%} of the variance. Some classes are marked.",
        key=[(symbol, colour, name) for (_, symbol, colour), (_, name) in marks],
    )


def map_of_pictures(
    points_N2: npt.NDArray[np.float64], picture: Callable[[int], npt.NDArray[np.uint8]]
) -> Figure:
    """The items' pictures where they lie in the plane, one a cell: that nearest to its middle.

    Args:
        points_N2: where the items are, see `principal_plane`.
        picture: an item's picture, (height, width, 3).
    """
    low, high = np.percentile(points_N2, [0.5, 99.5], axis=0)
    places_N2 = (points_N2 - low) / np.maximum(high - low, 1e-12) * _CELLS
    places_N2[:, 1] = _CELLS[1] - places_N2[:, 1]  # pictures count rows from the top
    cells_N2 = np.floor(places_N2).astype(np.int64)
    inside = np.flatnonzero(((cells_N2 >= 0) & (cells_N2 < _CELLS)).all(axis=1))
    off_centre = np.square(places_N2 - cells_N2 - 0.5).sum(axis=1)
    canvas = Image.new("RGBA", (_CELLS[0] * _CELL, _CELLS[1] * _CELL))
    filled: set[tuple[int, int]] = set()
    for item in inside[np.argsort(off_centre[inside], kind="stable")]:
        column, row = map(int, cells_N2[item])
        if (column, row) not in filled:
            filled.add((column, row))
            image = Image.fromarray(picture(int(item))).resize((_CELL - 2, _CELL - 2))
            canvas.paste(image, (column * _CELL + 1, row * _CELL + 1))
    uri = _uri(canvas, "png")
    return Figure(
        uri,
        uri,
        alt=f"{len(filled)} pictures of test items, each at its place in the principal plane of the embeddings",
        caption="The same plane with the pictures themselves: in each cell the item nearest to its middle.",
    )


def principal_plane(embeddings_ND: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], float]:
    """The normalised embeddings in the plane of their two largest principal components.

    The sign of a component is that which makes its largest weight positive. With no variance, all points are at 0.

    Returns:
        The points, (N, 2), and the share of the variance that the plane holds.
    """
    rows_ND = np.asarray(embeddings_ND, dtype=np.float64)
    rows_ND = rows_ND / np.maximum(np.linalg.norm(rows_ND, axis=1, keepdims=True), 1e-12)
    rows_ND = rows_ND - rows_ND.mean(axis=0)
    variances_D, axes_DD = np.linalg.eigh(rows_ND.T @ rows_ND)
    # Embeddings of one dimension lie on a line of the plane.
    axes_D2 = np.pad(axes_DD, ((0, 0), (1, 0)))[:, :-3:-1]
    axes_D2 = axes_D2 * np.sign(axes_D2[np.abs(axes_D2).argmax(axis=0), [0, 1]])
    total = variances_D.sum()
    return rows_ND @ axes_D2, float(variances_D[-2:].sum() / total) if total > 0 else 1.0


def _curve(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], title: str, caption: str, course: str
) -> Figure:
    def draw(axes: Any, ink: str, line: str) -> None:
        axes.plot(x, y, color=line, linewidth=1.4)
        axes.set_xlabel("step")
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.grid(alpha=0.2, color=ink)

    return Figure(
        _draw(draw, "light", size=(4.6, 2.8), form="svg"),
        _draw(draw, "dark", size=(4.6, 2.8), form="svg"),
        alt=f"{title} over the steps, {course}",
        caption=f"{caption}: {course}.",
    )


def _draw(draw: Callable[[Any, str, str], None], theme: str, size: tuple[float, float], form: str) -> str:
    """A figure without a ground of its own, as a data URI."""
    ink = _INK[theme]
    # No pyplot: it would keep figures, and pick a window system.
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


def _uri(image: Image.Image, form: str, **options: Any) -> str:
    file = BytesIO()
    image.save(file, form, optimize=True, **options)
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode()}"
