"""Exact nearest neighbours.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code, `K` neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Similarity
from dml_eval_rs.matches.relation import check_exclude


def knn(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    k: int,
    *,
    similarity: Similarity = "cosine",
    exclude_self: bool = False,
    exclude: npt.ArrayLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the k nearest gallery items of every query, exactly, ties by the lower index.

    cosine: q·g / (|q||g|); dot: q·g; euclidean: −|q − g|²; hamming: the number of differing bits, lowest first. The
    order is that of float64 (docs/reference/metrics.md).

    Args:
        queries: (Q, D) float16, float32 or float64, finite, or with ``similarity="hamming"`` (Q, W) uint8 codes, see
            `binarize`. Q may be 0 if there is a gallery.
        gallery: (G, D) or (G, W). If None, the queries search one another.
        k: 1 to G, or to G − 1 if any query excludes an item.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        exclude_self: whether query i excludes gallery item i; the gallery must have Q rows then.
        exclude: (Q,) the index of each query in the gallery, to exclude it; -1 for queries outside.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.

    Returns:
        Similarities (Q, K) float32, descending (for ``"euclidean"`` the negative squared distances), or for
        ``"hamming"`` distances (Q, K) int32, ascending; and indices (Q, K) int64. Without a query the gallery is not
        read.

    Raises:
        TypeError: if an array has the wrong dtype.
        ValueError: if shapes don't match, a number isn't finite, a row is all zeros under the cosine, a code has more
            than 65,536 bits, or k is out of range.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import knn
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> similarities, indices = knn(x[:1], x, k=3)
        >>> indices.tolist()
        [[0, 1, 4]]
        >>> [round(float(s), 3) for s in similarities[0]]
        [1.0, 0.994, 0.8]
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    sides = arguments.to_sides(queries, gallery, similarity, may_be_empty=True)
    own_Q = check_own(exclude, exclude_self, len(sides.queries), len(sides.items))
    excludes = exclude_self or (own_Q is not None and bool((own_Q >= 0).any()))
    checked_k = check_k(k, len(sides.items), excludes)
    checked_threads = arguments.threads(threads)
    if len(sides.queries) == 0:
        return np.zeros((0, checked_k), reported_dtype(similarity)), np.zeros((0, checked_k), np.int64)
    return _native.knn(
        sides.queries,
        sides.gallery,
        checked_k,
        similarity=similarity,
        exclude_self=exclude_self,
        exclude=own_Q,
        threads=checked_threads,
        progress=progress,
    )


def reported_dtype(similarity: str) -> type[np.int32] | type[np.float32]:
    """Return the dtype of distances, or of similarities."""
    return np.int32 if similarity == "hamming" else np.float32


def check_own(
    exclude: npt.ArrayLike | None, exclude_self: bool, queries: int, items: int
) -> npt.NDArray[np.int64] | None:
    """Check how queries exclude themselves; return the item that each query excludes, or None if none is listed."""
    if exclude_self and exclude is not None:
        raise ValueError("exclude_self came with exclude; expected one of them")
    if exclude_self and queries != items:
        raise ValueError(
            f"exclude_self excludes gallery item i for query i, but there are {queries} queries and {items} gallery "
            "items; expected equal numbers"
        )
    return None if exclude is None else check_exclude(exclude, queries, items)


def check_k(k: int, items: int, excludes: bool) -> int:
    """Return a number of neighbours among so many items, of which a query may exclude itself."""
    most = items - excludes
    checked = arguments.positive(k, "k")
    if most < 1:
        raise ValueError("the gallery holds only the query, which is excluded; expected more items")
    if checked > most:
        raise ValueError(
            f"k is {k}; expected 1 to {most}, the gallery's size{' without the query itself' if excludes else ''}"
        )
    return checked
