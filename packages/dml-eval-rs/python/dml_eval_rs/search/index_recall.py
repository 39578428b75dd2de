"""The recall of an approximate index.

Shapes: `Q` queries, `G` gallery, `K` neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs.arguments import COSINE, Progress, Similarity
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.allowed import AllowedLike, Part, check_ids, run_parts
from dml_eval_rs.metrics.comparison import Interval, interval_of
from dml_eval_rs.metrics.tables import Table, Tabular
from dml_eval_rs.search.neighbours import check_search


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
    n_queries, k, parts = check_search(
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
