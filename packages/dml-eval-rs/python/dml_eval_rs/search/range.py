"""Exact search for all items within a threshold, such as near-duplicates.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code, `M` results of all queries.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Similarity
from dml_eval_rs.search.knn import check_k, check_own, reported_dtype


def range_search(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    threshold: float,
    *,
    similarity: Similarity = "cosine",
    exclude_self: bool = False,
    max_results: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Find all gallery items with a similarity of at least a threshold, exactly, nearest first, ties by index.

    With ``similarity="hamming"`` find all codes with a distance of at most the threshold. Under ``"euclidean"``
    similarities are negative squared distances, and so are thresholds. Items are compared by their float64 scores, as
    in `verify` (docs/reference/verification.md), which are symmetric: query q finds item g if and only if g finds q.

    Args:
        queries: (Q, D) or (Q, W), as in `knn`.
        gallery: (G, D) or (G, W); None if the queries search one another.
        threshold: a finite number, in the units of the similarities or distances that `knn` returns.
        similarity, exclude_self, threads, progress: as in `knn`.
        max_results: the most results; None for any number. A result takes 12 bytes, and 16 more while it is sorted.

    Returns:
        Offsets (Q + 1,) int64, indices (M,) int64, and similarities (M,) float32 or distances (M,) int32: query i finds
        the gallery items ``indices[offsets[i]:offsets[i + 1]]``.

    Raises:
        TypeError: as `knn`, or if the threshold isn't a number.
        ValueError: as `knn`, or if there are more than `max_results` results; the message has their number.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import range_search
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> offsets, indices, similarities = range_search(x[:2], x, 0.9)
        >>> [indices[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
        [[0, 1], [1, 0]]
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    sides = arguments.to_sides(queries, gallery, similarity, may_be_empty=True)
    if exclude_self:
        check_own(None, exclude_self, len(sides.queries), len(sides.items))
        check_k(1, len(sides.items), exclude_self)
    checked_threshold = check_finite(threshold, "threshold")
    most = 2**63 - 1 if max_results is None else arguments.positive(max_results, "max_results")
    checked_threads = arguments.threads(threads)
    if len(sides.queries) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, reported_dtype(similarity))
    return _native.range_search(
        sides.queries,
        sides.gallery,
        checked_threshold,
        max_results=most,
        similarity=similarity,
        exclude_self=exclude_self,
        threads=checked_threads,
        progress=progress,
    )


def check_finite(x: float, name: str) -> float:
    """Return a finite number."""
    try:
        number = float(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} is {x!r}; expected a number that a float holds") from error
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; expected a finite number")
    return number
