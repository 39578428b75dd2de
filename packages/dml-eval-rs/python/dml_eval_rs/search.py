"""Exact search for embeddings and binary codes: neighbours, ranges, pairs, votes, hard negatives,
recall of an index.

Shapes: `Q` queries, `G` gallery, `N` items, `D` dim, `W` bytes per code, `K` neighbours, `M`
results in total.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress, Similarity
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.allowed import AllowedLike, Part, check_ids, divide, run_parts, to_allowed
from dml_eval_rs.matches.relation import check_exclude
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.comparison import Interval, interval_of
from dml_eval_rs.metrics.tables import Table, Tabular

Below = Literal["hardest", "easiest"]


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
    n_queries, k, parts = _check_search(
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
    n_queries, _, (part,) = _check_search(
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


def knn_classify(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    queries: npt.ArrayLike | None = None,
    k: int | Iterable[int] = (10, 20),
    *,
    temperature: float = 0.07,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[int, npt.NDArray[Any]]:
    """Classify queries by a weighted vote of the k nearest items, as in the evaluation of DINO and
    DINOv2.

    label(q) = argmax_y Σ over the k nearest items i with label y of exp(cos(q, i)/temperature) (Wu
    et al. 2018, section 3.4; Oquab et al. 2023, DINOv2). If labels tie, the least wins. A table of
    queries times classes is not needed.

    Args:
        embeddings: (N, D) the items with known labels, see `knn`.
        labels: (N,) integers of any width, booleans or strings.
        queries: (Q, D). By default, each item is classified by the other items.
        k: one or more numbers of neighbours, 1 to N, or to N − 1 without `queries`.
        temperature: above 0.
        threads, progress: see `knn`.

    Returns:
        k → (Q,) labels. The accuracy is ``(found[k] == query_labels).mean()``.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if the temperature is not positive.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import knn_classify
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9]], dtype=np.float32)
        >>> knn_classify(x, ["a", "a", "b", "b"], [[0.8, 0.6]], k=3)[3].tolist()
        ['a']
    """
    ks = sorted({arguments.positive(each, "k") for each in ([k] if isinstance(k, int) else k)})
    if not ks:
        raise ValueError("k is empty; expected at least one number of neighbours")
    heat = check_finite(temperature, "temperature")
    if heat <= 0:
        raise ValueError(f"temperature is {heat}; expected a number above 0")
    x_ND = arguments.check_rows(embeddings, "embeddings", COSINE, "items")
    label_N = arguments.partition(labels, "labels", len(x_ND))
    own = queries is None
    options: Any = {"exclude_self": own, "threads": threads, "progress": progress}
    similarity_QK, index_QK = knn(
        x_ND if queries is None else queries, None if own else x_ND, ks[-1], **options
    )
    classes, code_N = np.unique(label_N, return_inverse=True)
    code_QK = code_N.reshape(-1)[index_QK]
    if len(code_QK) == 0:
        return dict.fromkeys(ks, classes[:0])
    # Dividing by the query's largest weight prevents overflow.
    weight_QK = np.exp((similarity_QK.astype(np.float64) - similarity_QK[:, :1]) / heat)
    return {
        each: classes[_vote(code_QK[:, :each], weight_QK[:, :each], len(classes))] for each in ks
    }


def _vote(
    code_QK: npt.NDArray[Any], weight_QK: npt.NDArray[np.float64], classes: int
) -> npt.NDArray[np.int64]:
    """Return the class with the largest sum of weights per query. If classes tie, return the
    least.
    """
    ballot_QK = code_QK + classes * np.arange(len(code_QK))[:, None]
    ballot_B, vote_QK = np.unique(ballot_QK, return_inverse=True)
    sum_B = np.bincount(vote_QK.reshape(-1), weight_QK.reshape(-1))
    query_B, class_B = np.divmod(ballot_B, classes)
    order_B = np.lexsort((class_B, -sum_B, query_B))
    first_B = np.diff(query_B[order_B], prepend=-1) > 0
    winners: npt.NDArray[np.int64] = class_B[order_B][first_B]
    return winners


def hard_negatives(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | Relevance,
    k: int,
    *,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    allowed: AllowedLike | None = None,
    below: Below | None = None,
    margin: float = 0.0,
    relative_margin: float | None = None,
    similarity: Similarity = COSINE,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find the k nearest items with different labels for each item, exactly, sorted like `knn`.

    If `below` is given, negative n of item a is only used if s(a, n) < r(a) − margin, where r(a) is
    the similarity to the hardest positive, min over p of s(a, p), or to the easiest, the max. Use
    ``"hardest"`` to find semi-hard negatives (Schroff et al. 2015, FaceNet, Eq. 4), which are less
    similar to a than any positive. Use a margin to skip items that are near because the label is
    wrong (Moreira et al. 2024, NV-Retriever, TopK-MarginPos), or a relative margin, s(a, n) <
    relative_margin · r(a) (TopK-PercPos). s is the float64 score of `verify`, see
    docs/reference/verification.md; for codes, minus the distance.

    Args:
        embeddings: (N, D) floats or (N, W) codes, see `knn`.
        labels: (N,) integers of any width, booleans or strings; at least two labels must differ,
            unless there is a gallery. To list the positives per item, for example the relevant
            passages of a question, use a `Relevance`.
        k: 1 to N − 1, or with a gallery, to G.
        gallery: (G, D) or (G, W), the items to find, such as a corpus. By default, search the
            embeddings; items don't find themselves.
        gallery_labels: (G,) the labels of the gallery, unless `labels` is a `Relevance`.
        allowed: the items that can be found, see `knn`; positives need not be among these.
        below: ``"hardest"``, ``"easiest"``, or None to use all negatives, as for an item that does
            not have a positive.
        margin: at least 0 (the default), in the units of the similarities or distances; needs
            `below`.
        relative_margin: above 0, at most 1, for example 0.95; needs `below`, and ``"cosine"`` or
            ``"dot"``.
        similarity, threads: see `knn`.

    Returns:
        Similarities (N, K) float32, highest first, or distances (N, K) int32, lowest first; and
        indices (N, K) int64. When negatives are fewer than k, rows will end with NaN, or a distance
        of -1, and index -1.

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
    sides = arguments.to_sides(embeddings, gallery, similarity, ("embeddings", "gallery"))
    n_queries, n_items = len(sides.queries), len(sides.items)
    options: dict[str, Any] = {}
    if isinstance(labels, Relevance):
        if gallery_labels is not None:
            raise ValueError("gallery_labels and a Relevance are both given; expected only one")
        options["positives"] = to_allowed(labels, n_queries, n_items)
    elif gallery is None:
        (code_N,) = arguments.encode(arguments.partition(labels, "labels", n_queries))
        if code_N.max() == 0:
            raise ValueError(f"all {n_queries} labels are equal; expected at least two classes")
        options["labels"] = code_N, code_N
    else:
        if gallery_labels is None:
            raise ValueError(
                "gallery is given without gallery_labels; expected both, or a Relevance as labels"
            )
        own = arguments.partition(labels, "labels", n_queries)
        options["labels"] = tuple(
            arguments.encode(own, arguments.partition(gallery_labels, "gallery_labels", n_items))
        )
    if gallery is None and gallery_labels is not None:
        raise ValueError("gallery_labels is given without gallery; expected both, or neither")
    if allowed is not None:
        options["allowed"] = to_allowed(allowed, n_queries, n_items)
    return _native.hard_negatives(
        sides.queries,
        sides.gallery,
        check_neighbours(k, None, gallery is None, n_queries, n_items)[0],
        **_check_bound(below, margin, relative_margin, similarity),
        similarity=similarity,
        threads=arguments.threads(threads),
        **options,
    )


def _check_bound(
    below: Below | None, margin: float, relative_margin: float | None, similarity: str
) -> dict[str, Any]:
    """Check the bound of `hard_negatives`, and return the options for the core."""
    margin = check_finite(margin, "margin")
    if margin < 0:
        raise ValueError(f"margin is {margin}; expected at least 0")
    factor = 1.0 if relative_margin is None else check_finite(relative_margin, "relative_margin")
    given = {"margin": margin or None, "relative_margin": relative_margin}
    for name, value in given.items():
        if value is not None and below is None:
            raise ValueError(
                f"{name} is {value} and below is None; expected 'hardest', 'easiest', or no {name}"
            )
    if relative_margin is not None:
        if not 0 < factor <= 1 or margin:
            raise ValueError(
                f"relative_margin is {factor}, margin {margin}; expected above 0, at most 1, and "
                "no margin"
            )
        if similarity not in ("cosine", "dot"):
            raise ValueError(
                f"relative_margin is given for {similarity!r}; expected 'cosine' or 'dot', or a "
                "margin"
            )
    if below is not None:
        arguments.one_of(below, "below", ("hardest", "easiest"))
    return {"below": below, "margin": margin, "factor": factor}


@dataclass(frozen=True, slots=True)
class IndexRecall(Tabular):
    """Recall@k of an approximate index.

    Attributes:
        k: the number of neighbours.
        recall: the mean of `per_query`.
        per_query: (Q,) float64, how many of the first k found items are as near as the k-th
            nearest, over k.
    """

    k: int
    recall: float
    per_query: npt.NDArray[np.float64] = field(repr=False)

    def confidence_interval(
        self, level: float = 0.95, seed: int = 0, *, by: npt.ArrayLike | None = None
    ) -> Interval:
        """Return the bootstrap confidence interval of the mean, see
        `Evaluation.confidence_interval`.
        """
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
    similarity: Similarity = COSINE,
    exclude_self: bool = False,
    allowed: AllowedLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> IndexRecall:
    """Measure the recall of an approximate index compared with exact search; tied items are
    correct.

    recall = #{i in the first k found : key(i) ≥ key of the k-th nearest item} / k, where keys are
    the float64 numbers used by `knn`, see docs/reference/metrics.md. An item that ties with the
    k-th nearest is correct even when `knn` does not return this item. If a query is only `allowed`
    to find n < k items, the recall is the share of these n, or NaN if n is 0; the mean excludes
    NaN. Found items that are not allowed are wrong.

    Args:
        found: (Q, k or more) integers: gallery indices in the index's order, or −1 if fewer were
            found. Only the first k are used, and −1 counts as a miss unless fewer items are
            allowed. If `exclude_self`, the query itself is skipped, so you should request k + 1
            items.
        queries, gallery, k, similarity, exclude_self, allowed, threads, progress: see `knn`.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if an index is repeated in a row or
            not in the gallery.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import index_recall
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> found = [[0, 1, 2]]  # from an approximate index; the third nearest is item 4
        >>> round(index_recall(found, x[:1], x, k=3).recall, 4)
        0.6667
    """
    n_queries, k, parts = _check_search(
        queries,
        gallery,
        similarity,
        k,
        exclude_self,
        threads,
        progress,
        allowed=allowed,
        may_be_empty=False,
    )
    found_QK = check_found(found, n_queries, k)
    if allowed is not None:
        check_ids(found_QK, n_queries if gallery is None else len(parts[0].all.items))

    means: list[float] = []

    def measure(part: Part) -> tuple[npt.NDArray[np.float64]]:
        per_query, mean = part.run(_native.index_recall, k, found=part.translate(found_QK))
        means.append(mean)
        return (per_query,)

    (per_query_Q,) = run_parts(parts, measure, progress)
    # The core's mean does not depend on the caller's rounding mode.
    mean = means[0] if len(parts) == 1 else mean_of(per_query_Q)
    return IndexRecall(k=k, recall=mean, per_query=per_query_Q)


def mean_of(per_query_Q: npt.NDArray[np.float64]) -> float:
    """Return the mean without NaN, added in the order of the queries like in the core; NaN if all
    are NaN.
    """
    known = per_query_Q[~np.isnan(per_query_Q)]
    return float(known.cumsum()[-1] / len(known)) if len(known) else math.nan


def check_found(found: object, queries: int, k: int) -> npt.NDArray[np.int64]:
    """Check the results of an index, and return them as int64."""
    found_QK = to_array(found, "found", 2)
    if found_QK.ndim != 2 or len(found_QK) != queries or found_QK.shape[1] < k:
        raise ValueError(
            f"found has shape {found_QK.shape}; expected ({queries}, {k}) or more columns"
        )
    if found_QK.dtype.kind not in "iu":
        raise TypeError(f"found has dtype {found_QK.dtype}; expected integers, the gallery indices")
    if found_QK.dtype == np.uint64:
        # Unsigned −1 becomes −1. Galleries never have 2**63 items.
        return found_QK.view(np.int64) if found_QK.dtype.isnative else found_QK.astype(np.int64)
    return np.asarray(found_QK, np.int64)


def binarize(embeddings: npt.ArrayLike, threshold: float = 0.0) -> npt.NDArray[np.uint8]:
    """Binarize embeddings to (n, ceil(D / 8)) uint8 codes: a bit per number, set if the number
    exceeds the threshold.

    bit_d = [x_d > threshold], packed most significant bit first, like `numpy.packbits`; the last
    byte is padded with zeros. Zhai and Wu, "Making Classification Competitive for Deep Metric
    Learning" (2019), section 3.4, use 0.

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
    rows = arguments.check_rows(embeddings, "embeddings", None, may_be_empty=True)
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
    allowed: Any = None,
    *,
    may_be_empty: bool = True,
    divides: bool = True,
) -> tuple[int, int, list[Part]]:
    """Check the arguments that searches share; return the number of queries, k, and parts to
    search.
    """
    sides = arguments.to_sides(queries, gallery, similarity, may_be_empty=may_be_empty)
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
    number = _to_float(x, name)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; expected a finite number")
    return number


def _to_float(x: float, name: str) -> float:
    try:
        return float(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{name} is a {type(x).__name__}; expected a number that fits in a float"
        ) from error
