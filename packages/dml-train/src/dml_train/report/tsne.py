"""The items' places on the map: t-SNE of the normalised embeddings.

Shapes: `N` items, `M` of them on the map, `D` embedding dimension, `C` classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dml_train.extras import extra
from dml_train.report.selection import select_evenly

_ITEMS = 2500  # on the map, about: some seconds of t-SNE
_PER_CLASS = 40  # at most, if there are many classes
_PERPLEXITY = 30.0
_FEWEST = 8  # items; fewer have no neighbourhoods


def choose_items(labels_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Choose the items of the map, (M,), ascending: all, or about 2,500.

    Of more items it selects whole classes evenly, so that clusters are visible, and of a large class some items evenly.
    The choice is deterministic.
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
    """Map the normalised embeddings to two dimensions so that neighbours stay neighbours, (N, 2) in [-1, 1].

    Source: van der Maaten 2014, Accelerating t-SNE using Tree-Based Algorithms, as in scikit-learn: perplexity 30, or
    a third of the other items if that is less. It starts at the two largest principal components, without
    randomness. Distances between far groups mean little.

    Args:
        embeddings_ND: (N, D) floating.

    Returns:
        The points; for fewer than eight items, or identical items, the principal components themselves.
    """
    rows_ND = np.asarray(embeddings_ND, dtype=np.float64)
    rows_ND = rows_ND / np.maximum(np.linalg.norm(rows_ND, axis=1, keepdims=True), 1e-12)
    points_N2 = principal_plane(rows_ND)
    spread = points_N2[:, 0].std()
    if len(rows_ND) >= _FEWEST and spread > 1e-9:
        with extra("report", "a report's map"):  # here, since their imports are slow
            from sklearn.manifold import TSNE
            from threadpoolctl import threadpool_limits

        perplexity = min(_PERPLEXITY, (len(rows_ND) - 1) / 3)
        start_N2 = points_N2 / spread * 1e-4
        # One thread: sums in another order give another map.
        with threadpool_limits(1):
            points_N2 = TSNE(init=start_N2, perplexity=perplexity, random_state=0).fit_transform(rows_ND)
    points_N2 = points_N2 - (points_N2.min(axis=0) + points_N2.max(axis=0)) / 2
    return np.asarray(points_N2 / max(float(np.abs(points_N2).max()), 1e-12), dtype=np.float64)


def principal_plane(rows_ND: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Project the rows on their two largest principal components, (N, 2).

    Each component's sign makes its largest weight positive. Without variance, all points are at 0.
    """
    rows_ND = rows_ND - rows_ND.mean(axis=0)
    _, axes_DD = np.linalg.eigh(rows_ND.T @ rows_ND)
    # Rows of one dimension lie on a line in the plane.
    axes_D2 = np.pad(axes_DD, ((0, 0), (1, 0)))[:, :-3:-1]
    axes_D2 = axes_D2 * np.sign(axes_D2[np.abs(axes_D2).argmax(axis=0), [0, 1]])
    plane_N2: npt.NDArray[np.float64] = rows_ND @ axes_D2
    return plane_N2
