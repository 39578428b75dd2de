"""k-means clustering, and the agreement of two partitions.

Shapes: `N` items, `D` dim, `C` clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.peers import Peers

MAX_ITER = 100
AVERAGES = ("min", "geometric", "arithmetic", "max")

Average = Literal["min", "geometric", "arithmetic", "max"]


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
    progress: Callable[[int, int], object] | None = None,
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
    rows_ND = arguments.embeddings(x, "x", "items")
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


def nmi(a: npt.ArrayLike, b: npt.ArrayLike, *, average: Average = "arithmetic") -> float:
    """Return the normalised mutual information of two partitions.

    I(a, b) over an average of H(a) and H(b), with logarithms of any base: 2·I / (H(a) + H(b)) for the arithmetic one.

    Args:
        a: (N,) integers, booleans or strings: the cluster of each item.
        b: (N,), of any of these kinds.
        average: ``"min"``, ``"geometric"``, ``"arithmetic"`` or ``"max"`` of the entropies.

    Returns:
        0 to 1; 1 if both put everything into one cluster, 0 if one does.

    Raises:
        TypeError: if either is an array of floats.
        ValueError: if the lengths differ or are 0, or for an unknown average.

    Example:
        >>> from dml_eval_rs import nmi
        >>> nmi([0, 0, 1, 1], ["b", "b", "a", "a"])  # the same clusters under other names
        1.0
    """
    return _native.nmi(*_partitions(a, b), arguments.one_of(average, "average", AVERAGES))


def ami(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the mutual information of two partitions, adjusted for chance.

    (I − E) / ((H(a) + H(b))/2 − E), where E is the mean of I over random partitions with clusters of the same sizes.
    Vinh, Epps and Bailey, "Information Theoretic Measures for Clusterings Comparison" (2010), Eq. 24a, with the
    arithmetic mean of the entropies.

    Args:
        a: (N,) integers, booleans or strings: the cluster of each item.
        b: (N,), of any of these kinds.

    Returns:
        At most 1; for random partitions 0 on average, and sometimes slightly negative. 1 if both put everything into
        one cluster, or every item into its own.

    Raises:
        TypeError: if either is an array of floats.
        ValueError: if the lengths differ or are 0.

    Example:
        >>> from dml_eval_rs import ami
        >>> round(ami([0, 0, 1, 1], [0, 0, 1, 2]), 4)
        0.5714
    """
    return _native.ami(*_partitions(a, b))


def ari(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the Rand index of two partitions, adjusted for chance.

    (S − E) / ((A + B)/2 − E), E = A·B/T: of all T pairs of items, A are together in a, B in b, and S in both; E is the
    mean of S over random partitions with clusters of the same sizes. Hubert and Arabie, "Comparing Partitions" (1985).
    The fraction is computed in whole numbers, and rounded at the end.

    Args:
        a: (N,) integers, booleans or strings: the cluster of each item.
        b: (N,), of any of these kinds.

    Returns:
        −1/2 to 1; for random partitions 0 on average. 1 if both put everything into one cluster, or every item into its
        own.

    Raises:
        TypeError: if either is an array of floats.
        ValueError: if the lengths differ or are 0.

    Example:
        >>> from dml_eval_rs import ari
        >>> round(ari([0, 0, 1, 1], [0, 0, 1, 2]), 4)
        0.5714
    """
    return _native.ari(*_partitions(a, b))


def _partitions(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    a_N, b_N = arguments.partition(a, "a"), arguments.partition(b, "b")
    if a_N.shape != b_N.shape or len(a_N) == 0:
        raise ValueError(f"a has shape {a_N.shape} and b {b_N.shape}; expected the same length, at least 1")
    return arguments.encode(a_N)[0], arguments.encode(b_N)[0]


def check_clusters(n_clusters: int, items: int) -> int:
    """Check that `n_clusters` is from 1 to `items`, and return it."""
    clusters = arguments.positive(n_clusters, "n_clusters")
    if clusters > items:
        raise ValueError(f"n_clusters is {clusters}; expected 1 to {items}, the number of items")
    return clusters


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of clusters and labels, by each measure."""

    nmi: float
    ami: float
    ari: float


def cluster_agreement(
    parts: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    *,
    normalize: bool = False,
    bits: int = 0,
    average: Average,
    n_clusters: int | None,
    seed: int,
    threads: int | None,
    progress: Callable[[int, int], object] | None = None,
    peers: Peers | None = None,
) -> Agreement:
    """Cluster all rows by k-means, and return the agreement of clusters and labels.

    Args:
        parts: rows and their labels, of the queries and optionally of a gallery. Rows are read in place, block by
            block, and never copied as a whole.
        normalize: whether rows are scaled to length 1 first.
        bits: for packed codes, the bits of each row, which are clustered as the numbers 0 and 1; 0 for floats.
        average: of the entropies, see `nmi`.
        n_clusters: number of clusters; None for the number of distinct labels.
        seed: seed of the clustering.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.
        peers: processes that share the clustering; each holds the same rows.

    Raises:
        ValueError: if `n_clusters` is out of range.
    """
    code_N = np.concatenate(arguments.encode(*(labels for _, labels in parts)))
    clusters = len(np.unique(code_N)) if n_clusters is None else check_clusters(n_clusters, len(code_N))
    found_N, _, _, _ = _native.kmeans(
        parts[0][0],
        clusters,
        seed=seed,
        n_init=1,
        max_iter=MAX_ITER,
        more=parts[1][0] if len(parts) > 1 else None,
        unit=normalize,
        bits=bits,
        threads=threads,
        progress=progress,
        peers=peers,
    )
    return Agreement(
        nmi=_native.nmi(code_N, found_N, average),
        ami=_native.ami(code_N, found_N),
        ari=_native.ari(code_N, found_N),
    )
