"""Verification of all or given pairs, and open-set identification, to measure how well a threshold
decides.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code, `M` pairs, `F` folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress, Sides, Similarity
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.metrics.tables import Table, Tabular
from dml_eval_rs.peers import Peers, check_alike
from dml_eval_rs.search import knn
from dml_eval_rs.verification import rates
from dml_eval_rs.verification.by_identity import Identities
from dml_eval_rs.verification.rates import Order, divide, from_order, to_order
from dml_eval_rs.verification.result import Verification

DEFAULT = ("tar@far=1e-1", "tar@far=1e-2", "tar@far=1e-3", "tar@far=1e-4", "eer", "auc")


def verify(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | Labels,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | Labels | None = None,
    *,
    metrics: str | Iterable[str] = DEFAULT,
    similarity: Similarity = COSINE,
    pairs: npt.ArrayLike | None = None,
    folds: int | npt.ArrayLike | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> Verification:
    """Measure exactly how well thresholds accept pairs with equal labels (positive) and reject
    others (negative).

    A pair is accepted if the score is at least the threshold. ``"tar@far=X"`` is the largest share
    of positives that a threshold can accept if it must not accept a larger share of negatives than
    X. ``"eer"`` is the FAR where the ROC curve, drawn using straight lines between points, meets
    TAR = 1 − FAR. ``"auc"`` is the area under this curve, P(positive > negative) + P(equal)/2.
    ``"micro_ap"`` is the average precision of all pairs in a single ranking.

    Scores are float64, and do not depend on the machine or the number of threads: see
    docs/reference/verification.md in the repository. Memory does not grow with the negatives.

    Args:
        embeddings: (Q, D) or (Q, W), see `evaluate`.
        labels: (Q,), see `evaluate`, or `Labels`. Pairs with equal labels and groups are excluded,
            for example images of a person from the same camera, as are pairs with junk; distractors
            never match.
        gallery: (G, D) or (G, W). If given, compare all embeddings with all gallery items; by
            default, compare all unordered pairs of distinct embeddings.
        gallery_labels: (G,), of the same kind as `labels`. Must be given if and only if `gallery`
            is given.
        metrics: names: ``"tar@far=X"`` for X between 0 and 1, ``"eer"``, ``"auc"``, ``"micro_ap"``,
            and ``"accuracy"``, which is also added if `folds` are given. Note that when all pairs
            of floats are compared, the AUC and the micro-AP will take a few times longer than all
            other metrics, and EER, AUC and micro-AP store the positives' scores, of at most 2**22
            pairs.
        similarity: ``"cosine"`` (default), ``"dot"``, ``"euclidean"`` (minus the squared distance)
            or ``"hamming"`` (minus the number of differing bits).
        pairs: (M, 2) integers, an embedding and a gallery item (or a second embedding). If given,
            compare only these pairs; a repeated pair is counted each time.
        folds: number of folds, to divide `pairs` in order, or (M,) the fold per pair. Use this to
            measure the ``"accuracy"`` per fold, at the best threshold of the other folds (LFW's
            protocol, if there are 10 folds).
        threads, progress: see `evaluate`; the total grows when a step begins.
        peers: processes that share the comparison of all pairs, see `evaluate`.

    Returns:
        The metrics, in the requested order. Embeddings are kept, to be used by
        `confidence_interval` and `compare`.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`, or if a pair contains an absent
            item or the same item twice, or if positive or negative pairs are missing.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import verify
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> found = verify(x, [0, 0, 1, 1, 1], metrics=("auc", "eer"))
        >>> round(found["auc"], 4), round(found["eer"], 4)
        (0.8333, 0.3333)
    """
    names = rates.check_names(metrics, in_folds=folds is not None)
    threads = arguments.threads(threads)
    if folds is not None and pairs is None:
        raise ValueError(
            "folds is given without pairs; expected both, because folds divide the given pairs"
        )
    if pairs is not None and peers is not None:
        raise ValueError("pairs and peers are both given; expected only one")
    given, relation = rates.check_sides(embeddings, labels, gallery, gallery_labels, similarity)
    sides = given.keep(relation.kept)
    identities = Identities(sides, relation, similarity, threads)
    if pairs is not None:
        pairs_M2 = _check_pairs(pairs, given, relation)
        fold_M = None if folds is None else _check_folds(folds, len(pairs_M2))
        return _verify_pairs(identities, pairs_M2, fold_M, names)
    n_positive, n_negative = rates.count_pairs(relation)
    arrays = sides.queries, relation.codes[0], sides.gallery, relation.gallery_labels
    check_alike(peers, (similarity, names), *arrays, relation.groups, relation.gallery_groups)
    options: Any = {"groups": relation.groups, "gallery_groups": relation.gallery_groups}
    options |= {"threads": threads, "progress": progress, "peers": peers}
    if similarity == "hamming":
        found = rates.measure_distances(*_native.count_distances(*arrays, **options), names)
    else:
        points, slots = _native.verify(
            *arrays,
            **options,
            similarity=similarity,
            positives=n_positive,
            negatives=n_negative,
            ranks=rates.first_rejected(names, n_negative),
            equal_errors="eer" in names,
            slots=rates.wants_slots(names),
        )
        found = rates.measure_crossings(points, slots, names, n_positive, n_negative)
    return replace(found, _identities=identities)


def _verify_pairs(
    identities: Identities,
    pairs_M2: npt.NDArray[np.int64],
    fold_M: npt.NDArray[Any] | None,
    names: list[str],
) -> Verification:
    """Measure the given pairs, excluding junk and pairs with equal labels and groups; all scores
    are in memory.
    """
    relation = identities.relation
    label_Q, label_G = relation.codes
    kept_M = (pairs_M2 >= 0).all(axis=1)
    a_M, b_M = pairs_M2.T
    positive_M = label_Q[a_M] == label_G[b_M]
    if relation.groups is not None:
        group_G = relation.groups if relation.gallery_groups is None else relation.gallery_groups
        kept_M &= ~(positive_M & (relation.groups[a_M] == group_G[b_M]))
    positive_M = positive_M[kept_M]
    n_positive = int(np.count_nonzero(positive_M))
    rates.check_numbers(n_positive, len(positive_M) - n_positive)
    if fold_M is not None:
        (fold_M,) = arguments.encode(fold_M[kept_M])
        if fold_M.max() == 0:
            raise ValueError("all pairs are in one fold; expected at least two folds")
    kept_M2 = np.ascontiguousarray(pairs_M2[kept_M], np.uint32)
    score_M = identities.score(kept_M2)
    order_M = to_order(score_M)
    order, at_M = np.unique(order_M, return_inverse=True)
    positives, negatives = (
        np.bincount(at_M.reshape(-1)[kind_M], minlength=len(order)).astype(np.uint64)
        for kind_M in (positive_M, ~positive_M)
    )
    found = rates.measure_scores(order, positives, negatives, names)
    identities.given = kept_M2, positive_M, score_M
    if fold_M is None:
        return replace(found, _identities=identities)
    shares, threshold_F = _measure_folds(order_M, positive_M, fold_M)
    mean = sum(shares, Fraction(0)) / len(shares)
    values = {**found, "accuracy": divide(mean.numerator, mean.denominator)}
    return replace(
        found,
        _values={name: values[name] for name in names},
        fold_accuracy=np.array([divide(share.numerator, share.denominator) for share in shares]),
        fold_threshold=threshold_F,
        _identities=identities,
    )


def _above(scores: Order, limits: Any) -> Any:
    """Return the number of scores above the given limits; scores must be sorted."""
    return len(scores) - np.searchsorted(scores, limits, "right")


def _measure_folds(
    order_M: Order, positive_M: npt.NDArray[np.bool_], fold_M: npt.NDArray[np.uint32]
) -> tuple[list[Fraction], npt.NDArray[np.float64]]:
    """Return the accuracy and the threshold per fold: the largest threshold that is best on the
    other folds.
    """
    shares, thresholds = [], []
    for fold in range(int(fold_M.max()) + 1):
        inside_M = fold_M == fold
        positives = np.sort(order_M[positive_M & ~inside_M])
        negatives = np.sort(order_M[~positive_M & ~inside_M])
        scores = np.unique(order_M[~inside_M])
        candidates = np.append(scores, to_order(np.array([np.inf])))[::-1]
        right = _above(positives, candidates - 1) - _above(negatives, candidates - 1)
        threshold = int(candidates[np.argmax(right)])
        n_right = np.count_nonzero((order_M[inside_M] >= threshold) == positive_M[inside_M])
        shares.append(Fraction(int(n_right), int(np.count_nonzero(inside_M))))
        thresholds.append(from_order(threshold))
    return shares, np.array(thresholds)


def _check_pairs(pairs: object, sides: Sides, relation: Relation) -> npt.NDArray[np.int64]:
    """Return the pairs as places in the rows that are not junk, or -1 for junk."""
    given = len(sides.queries), len(sides.items)
    pairs_M2 = to_array(pairs, "pairs", 2)
    if pairs_M2.ndim != 2 or pairs_M2.shape[1] != 2 or len(pairs_M2) == 0:
        raise ValueError(
            f"pairs has shape {pairs_M2.shape}; expected (pairs, 2) with at least one pair"
        )
    if pairs_M2.dtype.kind not in "iu":
        raise TypeError(
            f"pairs has dtype {pairs_M2.dtype}; expected integers, the indices of two items"
        )
    bad_M = ((pairs_M2 < 0) | (pairs_M2 >= np.array(given))).any(axis=1)
    expected = "nonnegative indices below {} and {}".format(*given)
    if sides.gallery is None and not bad_M.any():
        bad_M, expected = pairs_M2[:, 0] == pairs_M2[:, 1], "two distinct items"
    if bad_M.any():
        at = int(np.argmax(bad_M))
        raise ValueError(f"pair {at} is {pairs_M2[at].tolist()}; expected {expected}")
    pairs_M2 = pairs_M2.astype(np.int64)
    if relation.kept is not None:
        place = np.full(given[1], -1, np.int64)
        place[relation.kept] = np.arange(len(relation.kept))
        first = 0 if sides.gallery is None else 1
        pairs_M2[:, first:] = place[pairs_M2[:, first:]]
    return pairs_M2


def _check_folds(folds: Any, pairs: int) -> npt.NDArray[Any]:
    if np.ndim(folds) == 0:
        number = arguments.positive(folds, "folds")
        if not 2 <= number <= pairs:
            raise ValueError(f"folds is {number}; expected 2 to {pairs}, the number of pairs")
        return np.arange(pairs) * number // pairs
    return arguments.partition(folds, "folds", pairs, "pair")


@dataclass(frozen=True)
class OpenSet(Tabular):
    """Metrics for open-set identification; for definitions see docs/reference/verification.md in
    the repository.

    Attributes:
        dir: FAR → DIR@FAR, the share of known queries that `threshold` accepts, with an item of the
            same label.
        threshold: FAR → the least float64 number that accepts at most this share of unknown
            queries.
        n_known, n_unknown: number of queries with a label that is in the gallery, or is not.
    """

    dir: Mapping[float, float]
    threshold: Mapping[float, float]
    n_known: int
    n_unknown: int

    def to_dict(self) -> dict[str, float]:
        """Return ``"dir@far=X"``, ``"threshold/dir@far=X"`` and the counts, to be saved as JSON."""
        found = {f"dir@far={far:g}": value for far, value in self.dir.items()}
        thresholds = {f"threshold/dir@far={far:g}": value for far, value in self.threshold.items()}
        return {**found, **thresholds, "n_known": self.n_known, "n_unknown": self.n_unknown}

    def table(self) -> Table:
        """Return the DIR per FAR, with the numbers of queries."""
        rows = [(f"DIR@FAR={far:g}", f"{value:.4f}") for far, value in self.dir.items()]
        numbers = [
            ("known queries", f"{self.n_known:,}"),
            ("unknown queries", f"{self.n_unknown:,}"),
        ]
        return Table([*rows, *numbers])


def open_set(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike | Labels,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | Labels | None = None,
    *,
    far: Iterable[float] | float = (1e-1, 1e-2, 1e-3),
    similarity: Similarity = COSINE,
    threads: int | None = None,
    progress: Progress | None = None,
) -> OpenSet:
    """Measure exactly how well a threshold identifies known queries and rejects unknown queries
    (DIR at FAR).

    A query is accepted if the score of the nearest item, found by `knn`, is at least the threshold,
    which may accept at most a share FAR of the unknown queries. DIR@FAR is the largest share of
    known queries that such a threshold accepts with a nearest item of the same label (Phillips,
    Grother and Micheals, "Evaluation Methods in Face Recognition", 2011).

    Args:
        embeddings, gallery: (Q, D) and (G, D), or (Q, W) and (G, W), see `evaluate`.
        labels: (Q,), see `evaluate`, or `Labels` without groups. A query is known if the label is
            in the gallery; distractors are always unknown, but junk is excluded.
        gallery_labels: (G,), see `verify`.
        far: shares of unknown queries to be accepted, between 0 and 1. Default: 0.1, 0.01 and
            0.001.
        similarity, threads, progress: see `evaluate`.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `evaluate`, or if known or unknown queries are
            missing.
    """
    shares = _check_far(far)
    given, relation = rates.check_sides(embeddings, labels, gallery, gallery_labels, similarity)
    sides = given.keep(relation.kept)
    if relation.groups is not None:
        raise ValueError("labels have groups, which identification can't exclude; expected none")
    code_Q, code_G = relation.codes
    known_Q = np.bincount(code_Q)[code_Q] > 1 if sides.gallery is None else np.isin(code_Q, code_G)
    n_known = int(np.count_nonzero(known_Q))
    n_unknown = len(known_Q) - n_known
    if n_known == 0 or n_unknown == 0:
        raise ValueError(
            f"{n_known} of {len(known_Q)} labels are in the gallery; expected some, not all"
        )
    options: Any = {"exclude_self": sides.gallery is None, "threads": threads, "progress": progress}
    _, nearest_Q1 = knn(sides.queries, sides.gallery, 1, similarity=similarity, **options)
    pairs_Q2 = np.stack([np.arange(len(code_Q)), nearest_Q1[:, 0]], axis=1).astype(np.uint32)
    score_Q = Identities(sides, relation, similarity, arguments.threads(threads)).score(pairs_Q2)
    order_Q = to_order(score_Q)
    unknown = np.sort(order_Q[~known_Q])
    right = np.sort(order_Q[known_Q & (code_Q == code_G[nearest_Q1[:, 0]])])
    found, thresholds = {}, {}
    for share in shares:
        limit = int(unknown[n_unknown - 1 - rates.accepted_at_most(share, n_unknown)])
        found[share] = divide(len(right) - int(np.searchsorted(right, limit, "right")), n_known)
        thresholds[share] = from_order(limit + 1)
    return OpenSet(dir=found, threshold=thresholds, n_known=n_known, n_unknown=n_unknown)


def _check_far(far: Any) -> list[float]:
    """Return distinct shares, in the given order; shares must be between 0 and 1."""
    try:
        shares = [float(share) for share in ([far] if np.ndim(far) == 0 else far)]
    except (TypeError, ValueError) as error:
        raise TypeError(f"far is {far!r}; expected numbers between 0 and 1") from error
    for share in shares:
        if not 0 < share < 1:
            raise ValueError(
                f"far contains {share}; expected numbers between 0 and 1, for example 0.001"
            )
    return list(dict.fromkeys(shares))
