"""The agreement of two partitions, such as clusters and labels.

Shapes: `N` items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.clustering.kmeans import MAX_ITER
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress
from dml_eval_rs.peers import Peers

AVERAGES = ("min", "geometric", "arithmetic", "max")

Average = Literal["min", "geometric", "arithmetic", "max"]


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


def measure_clusters(
    names: Sequence[str],
    parts: Sequence[tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]],
    *,
    normalize: bool,
    bits: int,
    n_clusters: int | None,
    seed: int,
    threads: int | None,
    progress: Progress | None,
    peers: Peers | None,
) -> dict[str, float]:
    """Cluster all rows by k-means, and return the agreement of clusters and labels.

    Args:
        names: which metrics to measure: ``"nmi"``, ``"nmi_geometric"``, …, ``"ami"``, ``"ari"``.
        parts: rows and their labels as codes, of the queries and optionally of a gallery. Rows are read in place, block
            by block, and never copied as a whole.
        normalize: whether to scale rows to length 1 first.
        bits: for packed codes, the bits of each row, which are clustered as the numbers 0 and 1; 0 for floats.
        n_clusters: number of clusters; None for the number of distinct labels.
        seed, threads, progress, peers: as in `evaluate`.
    """
    (code_N,) = arguments.encode(np.concatenate([labels for _, labels in parts]))
    found_N, _, _, _ = _native.kmeans(
        parts[0][0],
        int(code_N.max()) + 1 if n_clusters is None else n_clusters,
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
    return {name: _agreement(name, code_N, found_N) for name in names}


def _agreement(name: str, a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float:
    measure, _, average = name.partition("_")
    if measure == "nmi":
        return _native.nmi(a, b, average or "arithmetic")
    return _native.ami(a, b) if measure == "ami" else _native.ari(a, b)
