"""k-means, and the agreement of two partitions, such as clusters and labels.

Shapes: `N` items, `D` dim, `C` clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress

MAX_ITER = 100
Average = Literal["min", "geometric", "arithmetic", "max"]


@dataclass(frozen=True, slots=True)
class KMeans:
    """A clustering.

    Attributes:
        labels: (N,) int64, the index of the nearest centroid per row.
        centroids: (C, D) float32, or float64 for float64 input.
        inertia: the sum of squared distances between rows and centroids.
        n_iter: the number of rounds in the best run.
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
    """Cluster rows by Lloyd's algorithm (1982); the result depends on the seed, not on the machine
    or threads.

    Minimises Σ |x − c(x)|². Centres are drawn by k-means++ (Arthur and Vassilvitskii 2007) if this
    takes up to 10⁹ multiplications, otherwise by the same rule in eight batches (the rounds of
    k-means||, Bahmani et al. 2012, but drawing only `n_clusters` rows). Rows join the nearest
    centroid, compared in float64, or, if centroids are equally near, the lowest index. When a
    cluster is empty, it gets the row farthest from the assigned centroid.

    Args:
        x: (N, D) float16, float32 or float64, finite.
        n_clusters: 1 to N.
        seed: seed for the initial centres, 0 (default) to 2**64 - 1.
        n_init: number of runs with different initial centres, by default 1. The run with the least
            inertia is returned.
        max_iter: maximum number of rounds per run, at least 1. A run will end early when the
            centroids stop moving.
        threads, progress: see `evaluate`; the total grows from round to round.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import kmeans
        >>> result = kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), n_clusters=2)
        >>> bool(result.labels[0] == result.labels[1] != result.labels[2] == result.labels[3])
        True
    """
    rows_ND = arguments.check_rows(x, "x", None, "items")
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
    """Check that `n_clusters` is from 1 to `items`; return it."""
    clusters = arguments.positive(n_clusters, "n_clusters")
    if clusters > items:
        raise ValueError(f"n_clusters is {clusters}; expected 1 to {items}, the number of items")
    return clusters


def nmi(a: npt.ArrayLike, b: npt.ArrayLike, *, average: Average = "arithmetic") -> float:
    """Return the normalised mutual information of two partitions.

    I(a, b) over an average of H(a) and H(b), using logarithms to any base: 2·I / (H(a) + H(b)) by
    default.

    Args:
        a, b: (N,) integers, booleans or strings: the cluster of each item.
        average: how to average the entropies: ``"min"``, ``"geometric"``, ``"arithmetic"`` or
            ``"max"``.

    Returns:
        0 to 1. If only a or only b is a single cluster, this is 0; if both are, 1.

    Raises:
        TypeError: if an array contains floats.
        ValueError: if the lengths differ or are 0, or the average is unknown.

    Example:
        >>> from dml_eval_rs import nmi
        >>> nmi([0, 0, 1, 1], ["b", "b", "a", "a"])  # the same clusters, with different names
        1.0
    """
    return _native.nmi(*_partitions(a, b), arguments.one_of(average, "average", get_args(Average)))


def ami(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the mutual information of two partitions, adjusted for chance; for arguments and
    errors see `nmi`.

    (I − E) / ((H(a) + H(b))/2 − E), where E is the mean of I over random partitions with the same
    cluster sizes. Vinh, Epps and Bailey, "Information Theoretic Measures for Clusterings
    Comparison" (2010), Eq. 24a, using the arithmetic mean of the entropies.

    Returns:
        At most 1; for random partitions 0 on average, but sometimes slightly negative. If both
        partitions are a single cluster, or both put all items into separate clusters, this is 1.

    Example:
        >>> from dml_eval_rs import ami
        >>> round(ami([0, 0, 1, 1], [0, 0, 1, 2]), 4)
        0.5714
    """
    return _native.ami(*_partitions(a, b))


def ari(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the Rand index of two partitions, adjusted for chance; for arguments and errors see
    `nmi`.

    (S − E) / ((A + B)/2 − E), E = A·B/T: of all T pairs of items, A are together in a, B in b, and
    S in both; E is the mean of S over random partitions with the same cluster sizes. Hubert and
    Arabie, "Comparing Partitions" (1985). The fraction is computed in integers, and finally
    rounded.

    Returns:
        −1/2 to 1; for random partitions 0 on average. If both partitions are a single cluster, or
        both put all items into separate clusters, this is 1.

    Example:
        >>> from dml_eval_rs import ari
        >>> round(ari([0, 0, 1, 1], [0, 0, 1, 2]), 4)
        0.5714
    """
    return _native.ari(*_partitions(a, b))


def _partitions(
    a: npt.ArrayLike, b: npt.ArrayLike
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    a_N, b_N = arguments.partition(a, "a"), arguments.partition(b, "b")
    if a_N.shape != b_N.shape or len(a_N) == 0:
        raise ValueError(
            f"a has shape {a_N.shape} and b {b_N.shape}; expected the same length, at least 1"
        )
    return arguments.encode(a_N)[0], arguments.encode(b_N)[0]


def agreement(name: str, a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float:
    """Return the metric ``"nmi"``, ``"nmi_min"``, …, ``"ami"`` or ``"ari"`` for two arrays of
    codes.
    """
    measure, _, average = name.partition("_")
    if measure == "nmi":
        return _native.nmi(a, b, average or "arithmetic")
    return _native.ami(a, b) if measure == "ami" else _native.ari(a, b)
