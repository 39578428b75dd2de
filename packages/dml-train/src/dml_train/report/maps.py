"""The map of the embedding: its items as points coloured by class, and as pictures.

Shapes: `M` items on the map.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dml_train.report.figures import MARKS, Figure, draw_twice, encode_image

_SIZE = (6.4, 5.2)  # inches, of the map of points
_CELLS = (28, 23)  # across and down, of the map of pictures: with the same proportions
_CELL = 36  # pixels
_GOLDEN = 0.6180339887498949  # of a turn: neighbours by number get distant colours


def draw_map(
    points_M2: npt.NDArray[np.float64], labels_M: npt.NDArray[np.int64], named: Mapping[int, str], which: str
) -> Figure:
    """Draw the items as points in the colours of their classes, and mark the items of a few classes.

    Args:
        points_M2: the items' places, see `tsne`.
        labels_M: the items' classes.
        named: the marked classes' names by label; at most eight.
        which: the items in words.
    """
    marks = list(zip(MARKS, named.items(), strict=False))
    _, classes_M = np.unique(labels_M, return_inverse=True)
    colours = np.array([_colour(c) for c in range(int(classes_M.max(initial=0)) + 1)])
    plain_M = ~np.isin(labels_M, list(named))

    def draw(axes: Any, ink: str, line: str) -> None:
        axes.set_axis_off()
        axes.scatter(*points_M2[plain_M].T, s=7, c=colours[classes_M[plain_M]], alpha=0.75, linewidths=0)
        for (marker, _, colour), (label, _) in marks:
            chosen = points_M2[labels_M == label]
            axes.scatter(*chosen.T, s=34, marker=marker, color=colour, edgecolors=ink, linewidths=0.6)

    marked = ", ".join(named.values())
    return Figure(
        *draw_twice(draw, size=_SIZE, form="png"),
        alt=f"Scatter plot: t-SNE of {len(points_M2)} embeddings, coloured by class; marked: {marked}",
        caption=f"t-SNE of {which}, one colour per class (with many classes, some colours are similar). "
        "Some classes are marked. Neighbourhoods are meaningful; distances between far groups are not.",
        key=[(symbol, colour, name) for (_, symbol, colour), (_, name) in marks],
    )


def draw_picture_map(
    points_M2: npt.NDArray[np.float64], picture: Callable[[int], npt.NDArray[np.uint8]]
) -> Figure:
    """Draw the items' pictures at their places on the map: in each cell, the item nearest to its centre.

    Args:
        points_M2: the items' places, see `tsne`.
        picture: returns an item's picture by its index in `points_M2`, (height, width, 3).
    """
    low, high = np.percentile(points_M2, [0.5, 99.5], axis=0)
    places_M2 = (points_M2 - low) / np.maximum(high - low, 1e-12) * _CELLS
    places_M2[:, 1] = _CELLS[1] - places_M2[:, 1]  # pictures count rows from the top
    cells_M2 = np.floor(places_M2).astype(np.int64)
    inside = np.flatnonzero(((cells_M2 >= 0) & (cells_M2 < _CELLS)).all(axis=1))
    off_centre = np.square(places_M2 - cells_M2 - 0.5).sum(axis=1)
    canvas = Image.new("RGBA", (_CELLS[0] * _CELL, _CELLS[1] * _CELL))
    filled: set[tuple[int, int]] = set()
    for item in inside[np.argsort(off_centre[inside], kind="stable")]:
        column, row = map(int, cells_M2[item])
        if (column, row) not in filled:
            filled.add((column, row))
            image = Image.fromarray(picture(int(item))).resize((_CELL - 2, _CELL - 2))
            canvas.paste(image, (column * _CELL + 1, row * _CELL + 1))
    uri = encode_image(canvas, "png")
    return Figure(
        uri,
        uri,
        alt=f"{len(filled)} pictures of test items, each at its place on the map of the embeddings",
        caption="The same map with the items' pictures: in each cell, the item nearest to its centre.",
    )


def _colour(number: int) -> tuple[float, float, float]:
    # Its brightness contrasts with white and with black.
    return colorsys.hsv_to_rgb(number * _GOLDEN % 1.0, (0.75, 0.5)[number % 2], (0.75, 0.85)[number % 2])
