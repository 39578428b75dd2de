"""Exact search for embeddings and binary codes: neighbours, ranges, hard negatives, and the recall of an index.

Shapes: `Q` queries, `G` gallery, `N` items, `D` dim, `W` bytes per code, `K` neighbours, `M` results in total.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Similarity
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.relation import check_exclude
from dml_eval_rs.metrics.comparison import Interval, interval_of
from dml_eval_rs.metrics.tables import Table, Tabular

Below = Literal["hardest", "easiest"]
_Sides = tuple[npt.NDArray[Any], npt.NDArray[Any] | None]


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
    """Find the k nearest gallery items per query, exactly; equally near items are sorted by index.

    Similarities are compared in float64, see docs/reference/metrics.md: cosine q·g / (|q||g|), dot q·g, euclidean
    −|q − g|², and hamming, the number of differing bits, lowest first.

    Args:
        queries: (Q, D) or (Q, W), see the embeddings of `evaluate`. Q can be 0 if there is a gallery.
        gallery: (G, D) or (G, W). Use None to search the queries.
        k: 1 to G, or to G − 1 if an item is excluded for any query.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        exclude_self: whether query i excludes gallery item i. If True, the gallery must have Q rows.
        exclude: (Q,) gallery index that should be excluded per query, or -1 for none.
        threads, progress: see `evaluate`.

    Returns:
        Similarities (Q, K) float32, highest first (negative squared distances for ``"euclidean"``), or, for
        ``"hamming"``, distances (Q, K) int32, lowest first; and indices (Q, K) int64.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`, or if k is out of range.

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
    sides, k, options = _check_search(
        queries, gallery, similarity, k, exclude_self, threads, progress, exclude
    )
    if len(sides[0]) == 0:
        return np.zeros((0, k), reported_dtype(similarity)), np.zeros((0, k), np.int64)
    return _native.knn(*sides, k, **options)


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
    """Find all gallery items with a similarity that reaches a threshold, exactly, sorted like `knn`.

    If ``similarity="hamming"``, find all codes up to the threshold's distance; if ``"euclidean"``, use a
    negative squared distance as the threshold. Items are compared by the float64 scores of `verify`, which are
    symmetric: query q finds item g if and only if g finds q (see docs/reference/verification.md).

    Args:
        queries, gallery, similarity, exclude_self, threads, progress: see `knn`.
        threshold: a finite number, in the units of the similarities or distances that `knn` returns.
        max_results: maximum number of results. Default: unlimited. A result takes 12 bytes, and 16 more for sorting.

    Returns:
        Offsets (Q + 1,) int64, indices (M,) int64, and similarities (M,) float32 or distances (M,) int32: query i finds
        the gallery items ``indices[offsets[i]:offsets[i + 1]]``.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if there are more than `max_results` results.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import range_search
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> offsets, indices, similarities = range_search(x[:2], x, 0.9)
        >>> [indices[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
        [[0, 1], [1, 0]]
    """
    sides, _, options = _check_search(queries, gallery, similarity, 1, exclude_self, threads, progress)
    limit = _check_finite(threshold, "threshold")
    most = 2**63 - 1 if max_results is None else arguments.positive(max_results, "max_results")
    if len(sides[0]) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, reported_dtype(similarity))
    return _native.range_search(*sides, limit, max_results=most, **options)


def hard_negatives(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    k: int,
    *,
    below: Below | None = None,
    margin: float = 0.0,
    similarity: Similarity = "cosine",
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the k nearest items with different labels for each item, exactly, sorted like `knn`.

    If `below` is given, negative n of item a is only used if s(a, n) < r(a) − margin, where r(a) is the similarity to
    the hardest positive, min over p of s(a, p), or to the easiest, the max. Use ``"hardest"`` to find semi-hard
    negatives (Schroff et al. 2015, FaceNet, Eq. 4), which are less similar to a than any positive. Use a margin to skip
    items that are near because the label is wrong (Moreira et al. 2024, NV-Retriever, TopK-MarginPos). s is the float64
    score of `verify`, see docs/reference/verification.md; for codes, minus the distance.

    Args:
        embeddings: (N, D) floats or (N, W) codes, see `knn`.
        labels: (N,) integers of any width, booleans or strings; at least two labels must differ.
        k: 1 to N − 1.
        below: ``"hardest"``, ``"easiest"``, or None to use all negatives, as for an item that does not have a positive.
        margin: at least 0 (the default), in the units of the similarities or distances; needs `below`.
        similarity, threads: see `knn`.

    Returns:
        Similarities (N, K) float32, highest first, or distances (N, K) int32, lowest first; and indices (N, K) int64.
        When negatives are fewer than k, rows will end with NaN, or a distance of -1, and index -1.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if all labels are equal.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import hard_negatives
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> similarities, indices = hard_negatives(x, [0, 0, 1, 1, 1], k=1)
        >>> indices.ravel().tolist()
        [4, 4, 1, 1, 1]
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    x_ND = arguments.check_rows(embeddings, "embeddings", similarity, "items")
    (code_N,) = arguments.encode(arguments.partition(labels, "labels", len(x_ND)))
    n = len(x_ND)
    if code_N.max() == 0:
        raise ValueError(f"all {n} labels are equal; expected at least two classes")
    margin = _check_finite(margin, "margin")
    if margin < 0:
        raise ValueError(f"margin is {margin}; expected at least 0")
    if margin and below is None:
        raise ValueError(f"margin is {margin} and below is None; expected 'hardest', 'easiest', or no margin")
    if below is not None:
        arguments.one_of(below, "below", ("hardest", "easiest"))
    return _native.hard_negatives(
        x_ND,
        code_N,
        check_neighbours(k, None, True, n, n)[0],
        below=below,
        margin=margin,
        similarity=similarity,
        threads=arguments.threads(threads),
    )


@dataclass(frozen=True, slots=True)
class IndexRecall(Tabular):
    """Recall@k of an approximate index.

    Attributes:
        k: the number of neighbours.
        recall: the mean of `per_query`.
        per_query: (Q,) float64, the share of the k found items that are also in the k nearest.
    """

    k: int
    recall: float
    per_query: npt.NDArray[np.float64] = field(repr=False)

    def confidence_interval(
        self, level: float = 0.95, seed: int = 0, *, by: npt.ArrayLike | None = None
    ) -> Interval:
        """Return the bootstrap confidence interval of the mean, see `Evaluation.confidence_interval`."""
        return interval_of(self.per_query, by, level, seed)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except per-query values, to be saved as JSON."""
        return {"k": self.k, "recall": self.recall, "n_queries": len(self.per_query)}

    def table(self) -> Table:
        """Return the recall and the number of queries."""
        queries = f"{len(self.per_query):,}"
        return Table([(f"index recall@{self.k}", f"{self.recall:.4f}"), ("queries", queries)])


def index_recall(
    found: npt.ArrayLike,
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    k: int,
    *,
    similarity: Similarity = "cosine",
    exclude_self: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> IndexRecall:
    """Measure the recall of an approximate index compared with exact search; tied items are correct.

    recall = #{i in the first k found : key(i) ≥ key of the k-th nearest item} / k, where keys are the float64 numbers
    used by `knn`, see docs/reference/metrics.md. An item that ties with the k-th nearest is correct even when `knn`
    does not return this item.

    Args:
        found: (Q, k or more) integers: gallery indices in the index's order, or −1 if fewer were found. Only the first
            k are used. If `exclude_self`, the query itself is skipped, so you should request k + 1 items.
        queries, gallery, k, similarity, exclude_self, threads, progress: see `knn`.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if an index is repeated in a row or not in the gallery.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import index_recall
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> found = [[0, 1, 2]]  # from an approximate index; the third nearest is item 4
        >>> round(index_recall(found, x[:1], x, k=3).recall, 4)
        0.6667
    """
    sides, k, options = _check_search(
        queries, gallery, similarity, k, exclude_self, threads, progress, may_be_empty=False
    )
    found_QK = check_found(found, len(sides[0]), k)
    per_query_Q, mean = _native.index_recall(found_QK, *sides, k, **options)
    return IndexRecall(k=k, recall=mean, per_query=per_query_Q)


def check_found(found: object, queries: int, k: int) -> npt.NDArray[np.int64]:
    """Check the results of an index, and return them as int64."""
    found_QK = to_array(found, "found", 2)
    if found_QK.ndim != 2 or len(found_QK) != queries or found_QK.shape[1] < k:
        raise ValueError(f"found has shape {found_QK.shape}; expected ({queries}, {k}) or more columns")
    if found_QK.dtype.kind not in "iu":
        raise TypeError(f"found has dtype {found_QK.dtype}; expected integers, the gallery indices")
    if found_QK.dtype == np.uint64:
        # Unsigned −1 becomes −1. Galleries never have 2**63 items.
        return found_QK.view(np.int64) if found_QK.dtype.isnative else found_QK.astype(np.int64)
    return np.asarray(found_QK, np.int64)


def binarize(embeddings: npt.ArrayLike, threshold: float = 0.0) -> npt.NDArray[np.uint8]:
    """Binarize embeddings to (n, ceil(D / 8)) uint8 codes: a bit per number, set if the number exceeds the threshold.

    bit_d = [x_d > threshold], packed most significant bit first, like `numpy.packbits`; the last byte is padded with
    zeros. Zhai and Wu, "Making Classification Competitive for Deep Metric Learning" (2019), section 3.4, use 0.

    Args:
        embeddings: (n, D) float16, float32 or float64, finite; n can be 0.
        threshold: any number.

    Raises:
        TypeError, ValueError: as `evaluate`, or if the threshold is not a number.

    Example:
        >>> from dml_eval_rs import binarize
        >>> binarize([[0.5, -1.0, 2.0]]).tolist()  # the bits 101, and 5 padding bits
        [[160]]
    """
    rows = arguments.check_rows(embeddings, "embeddings", "cosine", may_be_empty=True)
    return _native.binarize(rows, _to_float(threshold, "threshold"))


def _check_search(
    queries: object,
    gallery: object,
    similarity: str,
    k: int,
    exclude_self: bool,
    threads: int | None,
    progress: Progress | None,
    exclude: npt.ArrayLike | None = None,
    *,
    may_be_empty: bool = True,
) -> tuple[_Sides, int, dict[str, Any]]:
    """Check the arguments that searches share; return both sides, k, and the options to pass to the core."""
    sides = arguments.to_sides(queries, gallery, similarity, may_be_empty=may_be_empty)
    k, own_Q, _ = check_neighbours(k, exclude, exclude_self, len(sides.queries), len(sides.items))
    options: dict[str, Any] = {"similarity": similarity, "exclude_self": exclude_self, "progress": progress}
    options["threads"] = arguments.threads(threads)
    if own_Q is not None:
        options["exclude"] = own_Q
    return (sides.queries, sides.gallery), k, options


def reported_dtype(similarity: str) -> type[np.int32] | type[np.float32]:
    """Return the dtype of distances, or of similarities."""
    return np.int32 if similarity == "hamming" else np.float32


def check_neighbours(
    k: int, exclude: npt.ArrayLike | None, exclude_self: bool, queries: int, items: int
) -> tuple[int, npt.NDArray[np.int64] | None, bool]:
    """Check k and the items to exclude; return k, checked `exclude`, and whether any item is excluded."""
    if exclude_self and exclude is not None:
        raise ValueError("exclude_self and exclude are both given; expected only one")
    if exclude_self and queries != items:
        came = f"exclude_self is True, but there are {queries} queries and {items} gallery items"
        raise ValueError(f"{came}; expected equal numbers, because query i excludes item i")
    own_Q = None if exclude is None else check_exclude(exclude, queries, items)
    excludes = exclude_self or (own_Q is not None and bool((own_Q >= 0).any()))
    most, k = items - excludes, arguments.positive(k, "k")
    if most < 1:
        raise ValueError("the gallery contains only the query, which is excluded; expected more items")
    if k > most:
        without = " without the query itself" if excludes else ""
        raise ValueError(f"k is {k}; expected 1 to {most}, the gallery's size{without}")
    return k, own_Q, excludes


def _check_finite(x: float, name: str) -> float:
    number = _to_float(x, name)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; expected a finite number")
    return number


def _to_float(x: float, name: str) -> float:
    try:
        return float(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} is a {type(x).__name__}; expected a number that fits in a float") from error
