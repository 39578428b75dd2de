"""Exact nearest neighbours.

Shapes: `Q` queries, `G` gallery, `K` neighbours.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.relation import check_indices
from dml_eval_rs.retrieval import SIMILARITIES, Progress, Similarity


def knn(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    k: int,
    *,
    similarity: Similarity = "cosine",
    exclude_self: bool = False,
    indices: npt.ArrayLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Find the k most similar gallery items of every query, exactly, ties by the lower index.

    cosine: q·g / (|q||g|); dot: q·g; euclidean: −|q − g|². The order is that of float64 (docs/reference/metrics.md).

    Args:
        queries: (Q, D) float16, float32 or float64, finite. Q may be 0, unless the queries are the gallery.
        gallery: (G, D); None for the queries themselves.
        k: 1 to G, or to G − 1 if any query leaves an item out.
        similarity: ``"cosine"``, ``"dot"`` or ``"euclidean"``.
        exclude_self: whether query i leaves out gallery item i; the gallery then has Q rows.
        indices: (Q,) the index of each query in the gallery, by which it is left out, and -1 for queries outside it.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.

    Returns:
        Similarities (Q, K) float32, descending (for ``"euclidean"`` the negative squared distances), and indices
        (Q, K) int64. An empty batch of queries gives two (0, K) arrays, and the gallery is not read.

    Raises:
        TypeError: if an array doesn't hold floats.
        ValueError: if shapes don't match, a number isn't finite, a row is all zeros under the cosine, or k is out
            of range.
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
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    queries_QD, gallery_GD = arguments.both_sides(queries, "queries", gallery, "gallery", may_be_empty=True)
    items = len(queries_QD if gallery_GD is None else gallery_GD)
    own_Q = check_own(indices, exclude_self, len(queries_QD), items)
    checked_k = check_k(k, items, exclude_self or (own_Q is not None and bool((own_Q >= 0).any())))
    checked_threads = arguments.threads(threads)
    if len(queries_QD) == 0:
        return np.zeros((0, checked_k), np.float32), np.zeros((0, checked_k), np.int64)
    return _native.knn(
        queries_QD,
        gallery_GD,
        checked_k,
        similarity=similarity,
        exclude_self=exclude_self,
        indices=own_Q,
        threads=checked_threads,
        progress=progress,
    )


def knn_codes(
    codes: npt.ArrayLike,
    gallery_codes: npt.ArrayLike | None,
    k: int,
    *,
    exclude_self: bool = False,
    indices: npt.ArrayLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Find the k nearest gallery codes of every code by Hamming distance, ties by the lower index.

    distance(a, b) = the number of differing bits.

    Args:
        codes: (Q, W) uint8, eight bits per byte. Q may be 0, unless the codes are the gallery.
        gallery_codes: (G, W) uint8; None for the codes themselves.
        k: 1 to G, or to G − 1 if any query leaves an item out.
        exclude_self: whether code i leaves out gallery code i; the gallery then has Q rows.
        indices: (Q,) the index of each code in the gallery, by which it is left out, and -1 for codes outside it.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.

    Returns:
        Distances (Q, K) int32, ascending, and indices (Q, K) int64. An empty batch of codes gives two (0, K) arrays.

    Raises:
        TypeError: if codes aren't uint8.
        ValueError: if shapes don't match, a code is too wide, or k is out of range.
        KeyboardInterrupt: within a second of Ctrl-C.
    """
    codes_QW, gallery_GW = arguments.both_sides(
        codes, "codes", gallery_codes, "gallery_codes", are_codes=True, may_be_empty=True
    )
    items = len(codes_QW if gallery_GW is None else gallery_GW)
    own_Q = check_own(indices, exclude_self, len(codes_QW), items)
    checked_k = check_k(k, items, exclude_self or (own_Q is not None and bool((own_Q >= 0).any())))
    checked_threads = arguments.threads(threads)
    if len(codes_QW) == 0:
        return np.zeros((0, checked_k), np.int32), np.zeros((0, checked_k), np.int64)
    return _native.knn_codes(
        codes_QW,
        gallery_GW,
        checked_k,
        exclude_self=exclude_self,
        indices=own_Q,
        threads=checked_threads,
        progress=progress,
    )


def check_own(
    indices: npt.ArrayLike | None, exclude_self: bool, queries: int, items: int
) -> npt.NDArray[np.int64] | None:
    """Check how queries leave themselves out; return each query's own item, or None where none is listed."""
    if exclude_self and indices is not None:
        raise ValueError("exclude_self came with indices; expected one of them")
    if exclude_self and queries != items:
        raise ValueError(
            f"exclude_self leaves out gallery item i for query i, but there are {queries} queries and "
            f"{items} gallery items; expected equal numbers"
        )
    return None if indices is None else check_indices(indices, queries, items)


def check_k(k: int, items: int, leaves_out: bool) -> int:
    """Check a number of neighbours among so many items, of which a query may leave out itself; return it."""
    most = items - leaves_out
    checked = arguments.positive(k, "k")
    if most < 1:
        raise ValueError(
            "the gallery holds the query alone, which exclude_self leaves out; expected more items"
        )
    if checked > most:
        raise ValueError(
            f"k is {k}; expected 1 to {most}, the gallery's size{' without the query itself' if leaves_out else ''}"
        )
    return checked
