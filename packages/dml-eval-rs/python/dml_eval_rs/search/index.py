"""Recall of an approximate index, measured against the exact nearest neighbours.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code, `K` neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Similarity
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.metrics.intervals import Interval, interval_of
from dml_eval_rs.metrics.tables import Table, Tabular
from dml_eval_rs.search.knn import check_k, check_own


@dataclass(frozen=True, slots=True)
class IndexRecall(Tabular):
    """Recall@k of an approximate index.

    Attributes:
        k: the number of neighbours.
        recall: mean of `per_query`.
        per_query: (Q,) float64, the share of each query's k found items that are among its k nearest.
    """

    k: int
    recall: float
    per_query: npt.NDArray[np.float64] = field(repr=False)

    def confidence_interval(
        self, level: float = 0.95, seed: int = 0, *, by: npt.ArrayLike | None = None
    ) -> Interval:
        """Return the bootstrap confidence interval of the mean, see `Evaluation.confidence_interval`."""
        return interval_of(self.per_query, np.ones(len(self.per_query), np.bool_), by, level, seed)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the per-query values, ready for JSON."""
        return {"k": self.k, "recall": self.recall, "n_queries": len(self.per_query)}

    def table(self) -> Table:
        """Return the recall and the number of queries."""
        return Table(
            [(f"index recall@{self.k}", f"{self.recall:.4f}"), ("queries", f"{len(self.per_query):,}")]
        )

    def precise(self) -> Table:
        """Return the table with all digits."""
        return Table([(name, repr(value)) for name, value in self.to_dict().items()])


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
        queries: (Q, D) or (Q, W), as in `knn`.
        gallery: (G, D) or (G, W); None if the queries search one another.
        k: 1 to G, or to G − 1 with `exclude_self`.
        similarity, exclude_self, threads, progress: as in `knn`.

    Returns:
        The recall of every query, and the mean. An index that returns `knn`'s items has a recall of 1.

    Raises:
        TypeError: as `knn`, or if `found` doesn't hold integers.
        ValueError: as `knn`, or if an index is repeated in a row or not in the gallery.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import index_recall
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> found = [[0, 1, 2]]  # of another index; the third nearest is item 4
        >>> round(index_recall(found, x[:1], x, k=3).recall, 4)
        0.6667
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    sides = arguments.to_sides(queries, gallery, similarity)
    check_own(None, exclude_self, len(sides.queries), len(sides.items))
    checked_k = check_k(k, len(sides.items), exclude_self)
    per_query_Q, mean = _native.index_recall(
        _check_found(found, len(sides.queries), checked_k),
        sides.queries,
        sides.gallery,
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
            f"found has shape {found_QK.shape}; expected ({queries}, {k}) or more columns, one row per query"
        )
    if found_QK.dtype.kind not in "iu":
        raise TypeError(
            f"found has dtype {found_QK.dtype}; expected integers, the indices that the index returned"
        )
    if found_QK.dtype == np.uint64:
        # As an unsigned number, −1 is the largest; ids between that and 2**63 are in no gallery.
        return found_QK.view(np.int64) if found_QK.dtype.isnative else found_QK.astype(np.int64)
    return np.asarray(found_QK, np.int64)
