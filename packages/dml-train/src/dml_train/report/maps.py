"""The map of the embedding: t-SNE of the items, as points coloured by class, and as pictures.

Shapes: `N` items, `M` items on the map, `D` embedding dimension.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from dml_train.extras import extra
from dml_train.measure.evaluate import Embedded
from dml_train.report.finished import Items
from dml_train.report.rendering import MARKS, Figure, draw_figure, encode_image, select_evenly

_ITEMS = 2500  # approximate maximum number of items on the map, for which t-SNE takes some seconds
_PER_CLASS = 40  # maximum number of items per class, if the number of classes is large
_PERPLEXITY = 30.0
_FEWEST = 8  # items; with fewer items, neighbourhoods aren't meaningful
_SIZE = (6.4, 5.2)  # inches, of the map of points
_CELLS = (28, 23)  # columns and rows of the map of pictures, in the proportions of `_SIZE`
_CELL = 36  # pixels
_GOLDEN = 0.6180339887498949  # turns of hue between consecutive classes, so that colours differ


def draw_maps(embedded: Embedded, items: Items) -> list[Figure]:
    """Draw the map of the test embeddings as points and, if the items have pictures, as
    pictures.
    """
    labels_N = np.asarray(embedded.labels)
    chosen = choose_items(labels_N)
    labels_M = labels_N[chosen]
    points_M2 = tsne(embedded.embeddings[chosen])
    classes, firsts = np.unique(labels_M, return_index=True)
    named = {
        int(labels_M[first]): items.name(int(chosen[first])) or f"class {labels_M[first]}"
        for first in firsts[select_evenly(len(classes), len(MARKS))]
    }
    which = f"all {len(labels_N):,} test embeddings, normalised"
    if len(chosen) < len(labels_N):
        which = (
            f"{len(chosen):,} of the {len(labels_N):,} test embeddings, normalised: of "
            f"{len(classes):,} of {len(np.unique(labels_N)):,} classes, evenly selected"
        )
    maps = [draw_map(points_M2, labels_M, named, which)]
    split = items.split
    if split is not None:
        maps.append(draw_picture_map(points_M2, lambda index: split.picture(int(chosen[index]))))
    return maps


def choose_items(labels_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Choose the items to draw, all or about 2,500; return the indices in ascending order, (M,).

    If there are more, select classes evenly, so that clusters are visible, and items in large
    classes evenly. The choice is deterministic.
    """
    if len(labels_N) <= _ITEMS:
        return np.arange(len(labels_N))
    order = np.argsort(labels_N, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels_N[order])) + 1)
    most = max(_PER_CLASS, _ITEMS // len(groups))
    groups = [group[select_evenly(len(group), most)] for group in groups]
    mean = sum(map(len, groups)) / len(groups)
    return np.sort(
        np.concatenate([groups[c] for c in select_evenly(len(groups), max(1, int(_ITEMS / mean)))])
    )


def tsne(embeddings_ND: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Map the normalised embeddings to 2 dimensions so that neighbours stay neighbours, (N, 2) in
    [-1, 1].

    Source: van der Maaten 2014, Accelerating t-SNE using Tree-Based Algorithms, as in scikit-learn:
    perplexity 30, or a third of the number of other items if less. t-SNE starts from the two
    largest principal components, not at random. Fewer than eight items, or identical items, are
    only projected. Don't interpret distances between far groups.
    """
    rows_ND = np.asarray(embeddings_ND, dtype=np.float64)
    rows_ND = rows_ND / np.maximum(np.linalg.norm(rows_ND, axis=1, keepdims=True), 1e-12)
    points_N2 = principal_plane(rows_ND)
    spread = points_N2[:, 0].std()
    if len(rows_ND) >= _FEWEST and spread > 1e-9:
        with extra("report", "a report's map"):  # imported here, since the imports are slow
            from sklearn.manifold import TSNE
            from threadpoolctl import threadpool_limits

        perplexity = min(_PERPLEXITY, (len(rows_ND) - 1) / 3)
        start_N2 = points_N2 / spread * 1e-4
        # Use a single thread, since a different order of summation would change the map.
        with threadpool_limits(1):
            points_N2 = TSNE(init=start_N2, perplexity=perplexity, random_state=0).fit_transform(
                rows_ND
            )
    points_N2 = points_N2 - (points_N2.min(axis=0) + points_N2.max(axis=0)) / 2
    return np.asarray(points_N2 / max(float(np.abs(points_N2).max()), 1e-12), dtype=np.float64)


def principal_plane(rows_ND: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Project the rows on the largest two principal components, (N, 2).

    The signs are chosen so that the largest weight per component is positive. If all rows are
    equal, return 0.
    """
    rows_ND = rows_ND - rows_ND.mean(axis=0)
    _, axes_DD = np.linalg.eigh(rows_ND.T @ rows_ND)
    # If rows have only a single dimension, the points lie on a line.
    axes_D2 = np.pad(axes_DD, ((0, 0), (1, 0)))[:, :-3:-1]
    axes_D2 = axes_D2 * np.sign(axes_D2[np.abs(axes_D2).argmax(axis=0), [0, 1]])
    plane_N2: npt.NDArray[np.float64] = rows_ND @ axes_D2
    return plane_N2


def draw_map(
    points_M2: npt.NDArray[np.float64],
    labels_M: npt.NDArray[np.int64],
    named: Mapping[int, str],
    which: str,
) -> Figure:
    """Draw items as points, coloured by class, and mark the items of `named` classes, at most
    eight.
    """
    marks = list(zip(MARKS, named.items(), strict=False))
    _, classes_M = np.unique(labels_M, return_inverse=True)
    colours = np.array([_colour(c) for c in range(int(classes_M.max(initial=0)) + 1)])
    plain_M = ~np.isin(labels_M, list(named))

    def draw(axes: Any, ink: str, line: str) -> None:
        axes.set_axis_off()
        axes.scatter(
            *points_M2[plain_M].T, s=7, c=colours[classes_M[plain_M]], alpha=0.75, linewidths=0
        )
        for (marker, _, colour), (label, _) in marks:
            chosen = points_M2[labels_M == label]
            axes.scatter(
                *chosen.T, s=34, marker=marker, color=colour, edgecolors=ink, linewidths=0.6
            )

    marked = ", ".join(named.values())
    return draw_figure(
        draw,
        _SIZE,
        "png",
        alt=(
            f"Scatter plot: t-SNE of {len(points_M2)} embeddings, coloured by class; marked: "
            f"{marked}"
        ),
        caption=(
            f"t-SNE of {which}, with one colour per class (if there are many, some colours are "
            "similar). Some classes are marked. Neighbourhoods are meaningful, but distances "
            "between far groups aren't."
        ),
        key=[(symbol, colour, name) for (_, symbol, colour), (_, name) in marks],
    )


def draw_picture_map(
    points_M2: npt.NDArray[np.float64], picture: Callable[[int], npt.NDArray[np.uint8]]
) -> Figure:
    """Draw pictures of items, (height, width, 3), at the items' positions: per cell, the item
    nearest to the centre.
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
    alt = f"{len(filled)} pictures of test items at their positions on the map of the embeddings"
    caption = (
        "The same map with pictures: each cell shows the item nearest to the centre of the cell."
    )
    return Figure(uri, uri, alt, caption)


def _colour(number: int) -> tuple[float, float, float]:
    # Choose a brightness that contrasts with white and with black.
    return colorsys.hsv_to_rgb(
        number * _GOLDEN % 1.0, (0.75, 0.5)[number % 2], (0.75, 0.85)[number % 2]
    )
