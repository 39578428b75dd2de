"""Open-set identification: the nearest item of a gallery, accepted above a threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Similarity
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.metrics.tables import Table, Tabular
from dml_eval_rs.search.knn import knn
from dml_eval_rs.verification.rates import accepted_at_most, divide, from_order, to_order
from dml_eval_rs.verification.sides import check_sides


@dataclass(frozen=True)
class OpenSet(Tabular):
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

    def to_dict(self) -> dict[str, float]:
        """Return the metrics ``"dir@far=X"``, each threshold as ``"threshold/dir@far=X"``, and the counts, for JSON."""
        rates = {f"dir@far={far:g}": value for far, value in self.dir.items()}
        thresholds = {f"threshold/dir@far={far:g}": value for far, value in self.threshold.items()}
        return {**rates, **thresholds, "n_known": self.n_known, "n_unknown": self.n_unknown}

    def table(self) -> Table:
        """Return DIR at each FAR, and the numbers of queries."""
        rows = [(f"DIR@FAR={far:g}", f"{value:.4f}") for far, value in self.dir.items()]
        return Table(
            [*rows, ("known queries", f"{self.n_known:,}"), ("unknown queries", f"{self.n_unknown:,}")]
        )

    def precise(self) -> Table:
        """Return the names and all digits of the rates, thresholds and counts."""
        return Table([(name, repr(value)) for name, value in self.to_dict().items()])


def open_set(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | Labels,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | Labels | None = None,
    *,
    far: Iterable[float] | float = (1e-1, 1e-2, 1e-3),
    similarity: Similarity = "cosine",
    threads: int | None = None,
    progress: Progress | None = None,
) -> OpenSet:
    """Measure how well a threshold identifies known queries and rejects unknown ones (DIR at FAR), exactly.

    A query is accepted if the score of its nearest item is at least the threshold. DIR@FAR: the largest share of known
    queries that are accepted with a nearest item of their label, by any threshold that accepts a share of unknown
    queries of at most FAR (Phillips, Grother and Micheals, "Evaluation Methods in Face Recognition", 2011).

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite: the queries; (Q, W) uint8 codes under ``"hamming"``.
        labels: (Q,) integers of any width, booleans or strings, or `Labels` without groups. A query is known if its
            label is in the gallery; a distractor never is, and junk is left out.
        gallery: (G, D) or (G, W); None: the queries are their own gallery, and each leaves itself out by its index.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery` is.
        far: shares of accepted unknown queries, above 0 and below 1.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"hamming"``.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.

    Returns:
        DIR and threshold at each FAR. The nearest item is `knn`'s, of equally near ones that with the lowest index.

    Raises:
        TypeError: if an array has the wrong kind of dtype.
        ValueError: if shapes don't match or are empty, a number isn't finite, a row is all zeros under the cosine, a
            FAR is not between 0 and 1, labels have groups, or no query is known, or none unknown.
        KeyboardInterrupt: within a second of Ctrl-C.
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    shares = _check_far(far)
    sides = check_sides(embeddings, labels, gallery, gallery_labels, similarity)
    if sides.groups is not None:
        raise ValueError("labels have groups, which identification doesn't leave out; expected none")
    code_Q, code_G = sides.codes
    known_Q = np.bincount(code_Q)[code_Q] > 1 if sides.gallery is None else np.isin(code_Q, code_G)
    n_known = int(np.count_nonzero(known_Q))
    n_unknown = len(known_Q) - n_known
    if n_known == 0 or n_unknown == 0:
        raise ValueError(
            f"{n_known} of {len(known_Q)} queries have a label of the gallery, and {n_unknown} have none; "
            "expected at least one of both"
        )
    _, nearest_Q1 = knn(
        sides.queries,
        sides.gallery,
        1,
        similarity=similarity,
        exclude_self=sides.gallery is None,
        threads=threads,
        progress=progress,
    )
    pairs_Q2 = np.stack([np.arange(len(code_Q)), nearest_Q1[:, 0]], axis=1).astype(np.uint32)
    score_Q = _native.pair_scores(
        sides.queries, sides.gallery, pairs_Q2, similarity=similarity, threads=arguments.threads(threads)
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


def _check_far(far: Any) -> list[float]:
    """Return distinct shares above 0 and below 1, in the order given."""
    try:
        shares = [float(share) for share in ([far] if np.ndim(far) == 0 else far)]
    except (TypeError, ValueError) as error:
        raise TypeError(f"far is {far!r}; expected numbers above 0 and below 1") from error
    for share in shares:
        if not 0 < share < 1:
            raise ValueError(f"far holds {share}; expected shares of negatives above 0 and below 1")
    return list(dict.fromkeys(shares))
