"""k-means clustering.

Shapes: `N` items, `D` dim, `C` clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress

MAX_ITER = 100


@dataclass(frozen=True, slots=True)
class KMeans:
    """A clustering.

    Attributes:
        labels: (N,) int64, the index of each row's nearest centroid.
        centroids: (C, D) float32, or float64 for float64 input.
        inertia: the sum of squared distances from the rows to their centroids.
        n_iter: rounds of the best run.
    """

    labels: npt.NDArray[np.int64]
    centroids: npt.NDArray[Any]
    inertia: float
    n_iter: int


def kmeans(
    x: npt.ArrayLike,
    n_clusters: int,
    *,
    seed: int = 0,
    n_init: int = 1,
    max_iter: int = MAX_ITER,
    threads: int | None = None,
    progress: Progress | None = None,
) -> KMeans:
    """Cluster rows by Lloyd's algorithm; the result depends on the seed, not on the machine or number of threads.

    Minimises Σ |x − c(x)|². Lloyd (1982). Centres are drawn by k-means++ (Arthur and Vassilvitskii 2007) where this
    takes at most 10⁹ multiplications; otherwise by the same rule in eight batches (the rounds of k-means||, Bahmani et
    al. 2012, with as many draws in all as clusters). Each row joins its nearest centroid, decided in float64; of
    equally near centroids, the one with the lowest index. An empty cluster takes the row farthest from its centroid.

    Args:
        x: (N, D) float16, float32 or float64, finite.
        n_clusters: 1 to N.
        seed: seed of the initial centres, 0 to 2**64 - 1.
        n_init: number of runs from different initial centres, at least 1; the run with the least inertia is returned.
        max_iter: maximum rounds per run, at least 1; a run ends earlier when no centroid moves.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared; the total grows from round to round.

    Returns:
        Labels, centroids, inertia and number of rounds.

    Raises:
        TypeError: if `x` isn't an array of floats.
        ValueError: if `x` is empty or not finite, or an argument is out of range.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import kmeans
        >>> result = kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), n_clusters=2)
        >>> bool(result.labels[0] == result.labels[1] != result.labels[2] == result.labels[3])
        True
    """
    rows_ND = arguments.check_rows(x, "x", "euclidean", "items")
    clusters = check_clusters(n_clusters, len(rows_ND))
    labels_N, centroids_CD, inertia, n_iter = _native.kmeans(
        rows_ND,
        clusters,
        seed=arguments.seed(seed),
        n_init=arguments.positive(n_init, "n_init"),
        max_iter=arguments.positive(max_iter, "max_iter"),
        threads=arguments.threads(threads),
        progress=progress,
    )
    return KMeans(labels_N.astype(np.int64), centroids_CD, inertia, n_iter)


def check_clusters(n_clusters: int, items: int) -> int:
    """Check that `n_clusters` is from 1 to `items`, and return it."""
    clusters = arguments.positive(n_clusters, "n_clusters")
    if clusters > items:
        raise ValueError(f"n_clusters is {clusters}; expected 1 to {items}, the number of items")
    return clusters
