"""Classify items by the votes of the neighbours.

Shapes: `Q` queries, `N` items, `D` dim, `K` neighbours, `B` ballots: pairs of a query and a class
with votes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress
from dml_eval_rs.search.neighbours import check_finite, knn


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
    found = {}
    for each in ks:
        query_B, class_B, sum_B = add_votes(code_QK[:, :each], weight_QK[:, :each], len(classes))
        found[each] = classes[class_B[find_largest(query_B, sum_B)]]
    return found


def add_votes(
    code_QK: npt.NDArray[Any], weight_QK: npt.NDArray[np.float64], classes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Add the weights per query and class, and return the ballots: (B,) queries, classes and sums.

    Ballots are sorted by query, then by class. A table of queries times classes is not needed.
    """
    ballot_QK = code_QK + classes * np.arange(len(code_QK))[:, None]
    ballot_B, vote_QK = np.unique(ballot_QK, return_inverse=True)
    sum_B: npt.NDArray[Any] = np.bincount(vote_QK.reshape(-1), weight_QK.reshape(-1))
    query_B, class_B = (part.astype(np.int64) for part in np.divmod(ballot_B, classes))
    return query_B, class_B, sum_B


def find_largest(
    query_B: npt.NDArray[np.int64], sum_B: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """Return the ballot with the largest sum per query, for queries with ballots; the first if
    ballots tie.
    """
    order_B = np.lexsort((-sum_B, query_B))
    return order_B[np.diff(query_B[order_B], prepend=-1) > 0]
