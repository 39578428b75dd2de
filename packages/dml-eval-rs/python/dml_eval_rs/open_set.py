"""Open-set identification: the nearest item of a gallery, accepted above a threshold.

Shapes: `Q` queries, `G` gallery, `D` dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.retrieval import SIMILARITIES, Progress, Similarity, check_labels_of_gallery
from dml_eval_rs.score_order import from_order, to_order
from dml_eval_rs.search import knn
from dml_eval_rs.table import to_html, to_text
from dml_eval_rs.verification_rates import accepted_at_most, divide
from dml_eval_rs.verification_sides import check_far


@dataclass(frozen=True, slots=True)
class OpenSet:
    """Metrics of open-set identification. docs/reference/verification.md of the repository defines them.

    Attributes:
        dir: FAR → DIR@FAR, the share of known queries that `threshold` accepts with an item of their label.
        threshold: FAR → the least float64 number at which at most this share of unknown queries is accepted.
        n_known: number of queries whose label is in the gallery.
        n_unknown: number of the other queries.
    """

    dir: Mapping[float, float]
    threshold: Mapping[float, float]
    n_known: int
    n_unknown: int

    def to_dict(self) -> dict[str, Any]:
        """Return all metrics, ready for JSON: each FAR as a string."""
        return {
            "dir": {str(far): value for far, value in self.dir.items()},
            "threshold": {str(far): value for far, value in self.threshold.items()},
            "n_known": self.n_known,
            "n_unknown": self.n_unknown,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the names and values that a table of the metrics shows."""
        rows = [(f"DIR@FAR={far:g}", f"{value:.4f}") for far, value in self.dir.items()]
        return [*rows, ("known queries", f"{self.n_known:,}"), ("unknown queries", f"{self.n_unknown:,}")]

    def __str__(self) -> str:
        """Return a table of two columns."""
        return to_text(self.rows())

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return to_html(self.rows())


def open_set(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    similarity: Similarity = "cosine",
    far: Iterable[float] | float = (1e-1, 1e-2, 1e-3),
    threads: int | None = None,
    progress: Progress | None = None,
) -> OpenSet:
    """Measure how well a threshold identifies known queries and rejects unknown ones (DIR at FAR), exactly.

    A query is accepted if the score of its nearest item is at least the threshold. DIR@FAR: the largest share of known
    queries that are accepted with a nearest item of their label, by any threshold that accepts a share of unknown
    queries of at most FAR (Phillips, Grother and Micheals, "Evaluation Methods in Face Recognition", 2011).

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite: the queries.
        labels: (Q,) integers of any width, booleans or strings. A query is known if its label is in the gallery.
        gallery: (G, D); None: the queries are their own gallery, and each leaves itself out by its index.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery` is.
        similarity: ``"cosine"``, ``"dot"`` or ``"euclidean"``.
        far: shares of accepted unknown queries, above 0 and below 1.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.

    Returns:
        DIR and threshold at each FAR. The nearest item is `knn`'s, of equally near ones that with the lowest index.

    Raises:
        TypeError: if an array has the wrong kind of dtype.
        ValueError: if shapes don't match or are empty, a number isn't finite, a row is all zeros under the cosine, a
            FAR is not between 0 and 1, or no query is known, or none unknown.
        KeyboardInterrupt: within a second of Ctrl-C.
    """
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    shares = check_far(far)
    check_labels_of_gallery(gallery, gallery_labels, None, "gallery")
    queries_QD, gallery_GD = arguments.both_sides(embeddings, "embeddings", gallery, "gallery")
    labels_Q = arguments.labels(labels, "labels", queries_QD, "embeddings")
    if gallery_GD is None:
        (code_Q,) = arguments.encode(labels_Q)
        code_G = code_Q
        known_Q = np.bincount(code_Q)[code_Q] > 1
    else:
        labels_G = arguments.labels(gallery_labels, "gallery_labels", gallery_GD, "gallery")
        code_Q, code_G = arguments.encode(labels_Q, labels_G)
        known_Q = np.isin(code_Q, code_G)
    n_known = int(np.count_nonzero(known_Q))
    n_unknown = len(known_Q) - n_known
    if n_known == 0 or n_unknown == 0:
        raise ValueError(
            f"{n_known} of {len(known_Q)} queries have a label of the gallery, and {n_unknown} have none; "
            "expected at least one of both"
        )
    _, nearest_Q1 = knn(
        queries_QD,
        gallery_GD,
        1,
        similarity=similarity,
        exclude_self=gallery_GD is None,
        threads=threads,
        progress=progress,
    )
    pairs_Q2 = np.stack([np.arange(len(queries_QD)), nearest_Q1[:, 0]], axis=1).astype(np.uint32)
    score_Q = _native.pair_scores(
        queries_QD, gallery_GD, pairs_Q2, similarity=similarity, threads=arguments.threads(threads)
    )
    order_Q = to_order(score_Q)
    unknown = np.sort(order_Q[~known_Q])
    right = np.sort(order_Q[known_Q & (code_Q == code_G[nearest_Q1[:, 0]])])
    rates, thresholds = {}, {}
    for share in shares:
        limit = int(unknown[n_unknown - 1 - accepted_at_most(share, n_unknown)])
        rates[share] = divide(len(right) - int(np.searchsorted(right, limit, "right")), n_known)
        thresholds[share] = from_order(limit + 1)
    return OpenSet(dir=rates, threshold=thresholds, n_known=n_known, n_unknown=n_unknown)
