"""Exact search for all items above a threshold, such as near-duplicates.

Shapes: `Q` queries, `G` gallery, `M` results of all queries.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.retrieval import SIMILARITIES, Progress, Similarity
from dml_eval_rs.search import check_k, check_own


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
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Find all gallery items with a similarity of at least a threshold, exactly, nearest first, ties by index.

    cosine: q·g / (|q||g|); dot: q·g; euclidean: −|q − g|², so its thresholds are negative. Items are compared by their
    float64 scores, as in `verify` (docs/reference/verification.md): item g of query q if and only if q of query g.

    Args:
        queries: (Q, D) float16, float32 or float64, finite. Q may be 0, unless the queries are the gallery.
        gallery: (G, D); None for the queries themselves.
        threshold: a finite number, in the units of the similarities that `knn` returns.
        similarity: ``"cosine"``, ``"dot"`` or ``"euclidean"``.
        exclude_self: whether query i leaves out gallery item i; the gallery then has Q rows.
        max_results: the most results; None for any number. A result takes 12 bytes, and 16 more while it is sorted.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.

    Returns:
        Offsets (Q + 1,) int64, indices (M,) int64 and similarities (M,) float32: query i has the gallery items
        ``indices[offsets[i]:offsets[i + 1]]``.

    Raises:
        TypeError: if an array doesn't hold floats, or the threshold is no number.
        ValueError: if shapes don't match, a number isn't finite, a row is all zeros under the cosine, or there are more
            than `max_results` results; the message has their number.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import range_search
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> offsets, indices, similarities = range_search(x[:2], x, 0.9)
        >>> [indices[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
        [[0, 1], [1, 0]]
    """
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    queries_QD, gallery_GD = arguments.both_sides(queries, "queries", gallery, "gallery", may_be_empty=True)
    if exclude_self:
        n_items = len(queries_QD if gallery_GD is None else gallery_GD)
        check_own(None, exclude_self, len(queries_QD), n_items)
        check_k(1, n_items, exclude_self)
    try:
        checked_threshold = float(threshold)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"threshold is {threshold!r}; expected a number that a float holds") from error
    if not math.isfinite(checked_threshold):
        raise ValueError(f"threshold is {checked_threshold}; expected a finite number")
    most = 2**63 - 1 if max_results is None else arguments.positive(max_results, "max_results")
    checked_threads = arguments.threads(threads)
    if len(queries_QD) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    return _native.range_search(
        queries_QD,
        gallery_GD,
        checked_threshold,
        similarity=similarity,
        exclude_self=exclude_self,
        max_results=most,
        threads=checked_threads,
        progress=progress,
    )
