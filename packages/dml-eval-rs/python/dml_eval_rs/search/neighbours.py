"""Exact search for embeddings and binary codes: nearest neighbours, ranges and pairs, with the
checks of all searches.

Shapes: `Q` queries, `G` gallery, `N` items, `D` dim, `W` bytes per code, `K` neighbours, `M`
results in total.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress, Similarity
from dml_eval_rs.matches.allowed import AllowedLike, Part, divide, run_parts, to_allowed
from dml_eval_rs.matches.relation import check_exclude


def knn(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    k: int,
    *,
    similarity: Similarity = COSINE,
    exclude_self: bool = False,
    exclude: npt.ArrayLike | None = None,
    allowed: AllowedLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the k nearest gallery items per query, exactly; equally near items are sorted by index.

    Similarities are compared in float64, see docs/reference/metrics.md: cosine q·g / (|q||g|), dot
    q·g, euclidean −|q − g|², and hamming, the number of differing bits, lowest first.

    Args:
        queries: (Q, D) or (Q, W), see the embeddings of `evaluate`. Q can be 0 if there is a
            gallery.
        gallery: (G, D) or (G, W). Use None to search the queries.
        k: 1 to G, or to G − 1 if an item is excluded for any query.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        exclude_self: whether query i excludes gallery item i. If True, the gallery must have Q
            rows.
        exclude: (Q,) gallery index that should be excluded per query, or -1 for none.
        allowed: the gallery items that can be found, by default all: (G,) booleans for all queries;
            a tuple of two `Labels`, of the queries and of the gallery, to find items with the
            query's label; or lists per query, a tuple ``(offsets, indices)`` of shapes (Q + 1,) and
            (M,), or a `Relevance`. If items can have more than one label, use
            `relevance_from_labels`.
        threads, progress: see `evaluate`.

    Returns:
        Similarities (Q, K) float32, highest first (negative squared distances for ``"euclidean"``),
        or, for ``"hamming"``, distances (Q, K) int32, lowest first; and indices (Q, K) int64. When
        fewer than k items are allowed, rows will end with index -1 and the worst score: -inf, or
        for distances 2**31 - 1.

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
    n_queries, k, parts = check_search(
        queries, gallery, similarity, k, exclude_self, threads, progress, exclude, allowed
    )
    if n_queries == 0:
        return np.zeros((0, k), reported_dtype(similarity)), np.zeros((0, k), np.int64)

    def search(part: Part) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        scores, indices = part.run(_native.knn, k)
        return scores, part.restore(indices)

    scores, indices = run_parts(parts, search, progress)
    if allowed is not None:
        scores[indices < 0] = worst_score(similarity)
    return scores, indices


def range_search(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None,
    threshold: float,
    *,
    similarity: Similarity = COSINE,
    exclude_self: bool = False,
    allowed: AllowedLike | None = None,
    max_results: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Find all gallery items with a similarity that reaches a threshold, exactly, sorted like
    `knn`.

    If ``similarity="hamming"``, find all codes up to the threshold's distance; if ``"euclidean"``,
    use a negative squared distance as the threshold. Items are compared by the float64 scores of
    `verify`, which are symmetric: query q finds item g if and only if g finds q (see
    docs/reference/verification.md).

    Args:
        queries, gallery, similarity, exclude_self, allowed, threads, progress: see `knn`.
        threshold: a finite number, in the units of the similarities or distances that `knn`
            returns.
        max_results: maximum number of results. Default: unlimited. A result takes 12 bytes, and 16
            more for sorting.

    Returns:
        Offsets (Q + 1,) int64, indices (M,) int64, and similarities (M,) float32 or distances (M,)
        int32: query i finds the gallery items ``indices[offsets[i]:offsets[i + 1]]``.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if there are more than `max_results`
            results.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import range_search
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> offsets, indices, similarities = range_search(x[:2], x, 0.9)
        >>> [indices[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
        [[0, 1], [1, 0]]
    """
    n_queries, _, (part,) = check_search(
        queries,
        gallery,
        similarity,
        1,
        exclude_self,
        threads,
        progress,
        allowed=allowed,
        divides=False,
    )
    limit = check_finite(threshold, "threshold")
    most = 2**63 - 1 if max_results is None else arguments.positive(max_results, "max_results")
    if n_queries == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, reported_dtype(similarity))
    offsets, indices, scores = part.run(_native.range_search, limit, max_results=most)
    return offsets, part.restore(indices), scores


def top_pairs(
    embeddings: npt.ArrayLike,
    n: int,
    *,
    similarity: Similarity = COSINE,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the n most similar of all pairs of rows, exactly, for example to find duplicates.

    Pairs i < j are compared by the float64 scores of `verify`, see docs/reference/verification.md;
    pairs with equal scores are sorted by i, then by j. Memory grows with n, but not with the number
    of pairs.

    Args:
        embeddings: (N, D) floats or (N, W) codes, see `knn`.
        n: 1 to N·(N − 1)/2.
        similarity, threads, progress: see `knn`.

    Returns:
        Similarities (n,) float32, highest first, or distances (n,) int32, lowest first; and pairs
        (n, 2) int64.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if n is out of range.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import top_pairs
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> similarities, pairs = top_pairs(x, 2)
        >>> pairs.tolist()
        [[0, 1], [2, 3]]
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    x_ND = arguments.check_rows(embeddings, "embeddings", similarity, "items")
    most, n = len(x_ND) * (len(x_ND) - 1) // 2, arguments.positive(n, "n")
    if n > most:
        raise ValueError(
            f"n is {n}; expected 1 to {most}, the number of pairs of {len(x_ND)} items"
        )
    options: Any = {
        "similarity": similarity,
        "threads": arguments.threads(threads),
        "progress": progress,
    }
    scores, pairs = _native.top_pairs(x_ND, n, **options)
    return scores, pairs.reshape(n, 2)


def check_search(
    queries: object,
    gallery: object,
    similarity: str,
    k: int,
    exclude_self: bool,
    threads: int | None,
    progress: Progress | None,
    exclude: npt.ArrayLike | None = None,
    allowed: Any = None,
    *,
    may_be_empty: bool = True,
    divides: bool = True,
) -> tuple[int, int, list[Part]]:
    """Check the arguments that searches share; return the number of queries, k, and parts to
    search.
    """
    sides = arguments.to_sides(
        queries, gallery, similarity, may_be_empty=may_be_empty, widens=False
    )
    n_queries, n_items = len(sides.queries), len(sides.items)
    k, own_Q, _ = check_neighbours(k, exclude, exclude_self, n_queries, n_items)
    options: dict[str, Any] = {
        "similarity": similarity,
        "exclude_self": exclude_self,
        "progress": progress,
    }
    options["threads"] = arguments.threads(threads)
    if own_Q is not None:
        options["exclude"] = own_Q
    if allowed is None:
        return n_queries, k, [Part(sides, options)]
    lists = to_allowed(allowed, n_queries, n_items)
    own_Q = np.arange(n_queries) if exclude_self else own_Q
    return n_queries, k, divide(sides, options, own_Q, lists, divides=divides)


def worst_score(similarity: str) -> float:
    """Return the score of a missing neighbour."""
    return np.iinfo(np.int32).max if similarity == "hamming" else -np.inf


def reported_dtype(similarity: str) -> type[np.int32] | type[np.float32]:
    """Return the dtype of distances, or of similarities."""
    return np.int32 if similarity == "hamming" else np.float32


def check_neighbours(
    k: int, exclude: npt.ArrayLike | None, exclude_self: bool, queries: int, items: int
) -> tuple[int, npt.NDArray[np.int64] | None, bool]:
    """Check k and the items to exclude; return k, checked `exclude`, and whether any item is
    excluded.
    """
    if exclude_self and exclude is not None:
        raise ValueError("exclude_self and exclude are both given; expected only one")
    if exclude_self and queries != items:
        came = f"exclude_self is True, but there are {queries} queries and {items} gallery items"
        raise ValueError(f"{came}; expected equal numbers, because query i excludes item i")
    own_Q = None if exclude is None else check_exclude(exclude, queries, items)
    excludes = exclude_self or (own_Q is not None and bool((own_Q >= 0).any()))
    most, k = items - excludes, arguments.positive(k, "k")
    if most < 1:
        raise ValueError(
            "the gallery contains only the query, which is excluded; expected more items"
        )
    if k > most:
        without = " without the query itself" if excludes else ""
        raise ValueError(f"k is {k}; expected 1 to {most}, the gallery's size{without}")
    return k, own_Q, excludes


def check_finite(x: float, name: str) -> float:
    """Check and return a finite number."""
    number = to_float(x, name)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; expected a finite number")
    return number


def to_float(x: float, name: str) -> float:
    """Convert a number to a float, or raise a TypeError."""
    try:
        return float(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{name} is a {type(x).__name__}; expected a number that fits in a float"
        ) from error
