"""Recall of an approximate index, measured against the exact nearest neighbours.

Shapes: `Q` queries, `G` gallery, `K` neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.conversion import to_array
from dml_eval_rs.evaluation import Interval, bootstrap_interval
from dml_eval_rs.retrieval import SIMILARITIES, Progress, Similarity
from dml_eval_rs.search import check_k, check_own
from dml_eval_rs.table import to_html, to_text


@dataclass(frozen=True, slots=True)
class IndexRecall:
    """Recall@k of an approximate index.

    Attributes:
        k: the number of neighbours.
        recall: mean of `per_query`.
        per_query: (Q,) float64, the share of each query's k found items that are among its k nearest.
    """

    k: int
    recall: float
    per_query: npt.NDArray[np.float64] = field(repr=False)

    def confidence_interval(self, level: float = 0.95, seed: int = 0) -> Interval:
        """Return the bootstrap confidence interval of the mean.

        The percentiles (1 ± level)/2 of the means of 2,000 resamples of the queries, drawn with replacement
        (Efron 1979, percentile method).

        Args:
            level: the confidence level, above 0 and below 1.
            seed: seed of the resamples. The same seed gives the same interval.

        Returns:
            The interval; its width is 0 where all queries have the same recall.

        Raises:
            ValueError: if `level` is out of range.
        """
        return bootstrap_interval(self.per_query, level, seed)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the per-query values, ready for JSON."""
        return {"k": self.k, "recall": self.recall, "n_queries": len(self.per_query)}

    def rows(self) -> list[tuple[str, str]]:
        """Return the names and values that a table of the result shows."""
        return [(f"index recall@{self.k}", f"{self.recall:.4f}"), ("queries", f"{len(self.per_query):,}")]

    def __str__(self) -> str:
        """Return a table of two columns."""
        return to_text(self.rows())

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return to_html(self.rows())


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
    """Measure the recall of an approximate index against exact truth, with ties counted as right.

    recall = #{i among the first k found : key(i) ≥ key of the k-th nearest item} / k, by the float64 keys that order
    `knn` (docs/reference/metrics.md). An item tied with the k-th nearest is right, whichever of them `knn` returns.

    Args:
        found: (Q, k or more) integers: indices of the gallery, in the index's order; −1 where it found nothing. The
            first k count. With `exclude_self` the query's own index is skipped, so ask the index for k + 1 items.
        queries: (Q, D) float16, float32 or float64, finite.
        gallery: (G, D); None for the queries themselves.
        k: 1 to G, or to G − 1 with `exclude_self`.
        similarity: ``"cosine"``, ``"dot"`` or ``"euclidean"``.
        exclude_self: whether query i leaves out gallery item i; the gallery then has Q rows.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.

    Returns:
        The recall of every query, and the mean. An index that returns `knn`'s items has a recall of 1.

    Raises:
        TypeError: if `found` doesn't hold integers, or an array doesn't hold floats.
        ValueError: if shapes don't match, an index is repeated in a row or not in the gallery, a number isn't finite, a
            row is all zeros under the cosine, or k is out of range.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import index_recall
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> found = [[0, 1, 2]]  # of another index; the third nearest is item 4
        >>> round(index_recall(found, x[:1], x, k=3).recall, 4)
        0.6667
    """
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    queries_QD, gallery_GD = arguments.both_sides(queries, "queries", gallery, "gallery")
    n_items = len(queries_QD if gallery_GD is None else gallery_GD)
    check_own(None, exclude_self, len(queries_QD), n_items)
    checked_k = check_k(k, n_items, exclude_self)
    found_QK = _check_found(found, len(queries_QD), checked_k)
    per_query_Q, mean = _native.index_recall(
        found_QK,
        queries_QD,
        gallery_GD,
        checked_k,
        similarity=similarity,
        exclude_self=exclude_self,
        threads=arguments.threads(threads),
        progress=progress,
    )
    return IndexRecall(k=checked_k, recall=mean, per_query=per_query_Q)


def _check_found(found: object, queries: int, k: int) -> npt.NDArray[np.int64]:
    found_QK = to_array(found, "found", 2)
    if found_QK.ndim != 2 or len(found_QK) != queries or found_QK.shape[1] < k:
        raise ValueError(
            f"found has shape {found_QK.shape}; expected ({queries}, {k}) or more columns, one row for each query"
        )
    if found_QK.dtype.kind not in "iu":
        raise TypeError(
            f"found has dtype {found_QK.dtype}; expected integers, the indices that the index returned"
        )
    if found_QK.dtype == np.uint64:
        # As an unsigned number, −1 is the largest; ids between that and 2**63 are in no gallery.
        return found_QK.view(np.int64) if found_QK.dtype.isnative else found_QK.astype(np.int64)
    return np.asarray(found_QK, np.int64)
