"""Verification: how well a threshold tells pairs of one label from pairs of two, over all pairs or given ones.

Shapes: `Q` queries, `G` gallery, `D` dim, `M` pairs, `F` folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.retrieval import SIMILARITIES, Progress, Similarity, check_labels_of_gallery
from dml_eval_rs.score_order import next_above
from dml_eval_rs.verification_pairs import measure_pairs, select_pairs
from dml_eval_rs.verification_rates import (
    accepted_at_most,
    area,
    check_numbers,
    divide,
    equal_error_rate,
    roc_of_slots,
)
from dml_eval_rs.verification_result import Verification

VerificationMetric = Literal["tar", "eer", "auc"]
METRICS = ("tar", "eer", "auc")

_Codes = npt.NDArray[np.uint32]


def verify(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    similarity: Similarity = "cosine",
    far: Iterable[float] | float = (1e-1, 1e-2, 1e-3, 1e-4),
    pairs: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    folds: int | npt.ArrayLike | None = None,
    metrics: Sequence[VerificationMetric] = METRICS,  # type: ignore[assignment]
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Measure exactly how well thresholds accept pairs of one label (positive) and reject others (negative).

    A pair is accepted if its score is at least the threshold. TAR@FAR: the largest share of positives accepted by any
    threshold that accepts a share of negatives of at most FAR. EER: where the ROC curve, its points joined by straight
    lines, meets TAR = 1 − FAR. AUC: the area under these lines, P(positive > negative) + P(equal)/2.

    All follow from one float64 score of each pair, the same on every machine and for any number of threads:
    docs/reference/verification.md of the repository. Memory doesn't grow with the negatives.

    Args:
        embeddings: (Q, D) float16, float32 or float64, finite.
        labels: (Q,) integers of any width, booleans or strings.
        gallery: (G, D); None: each unordered pair of two distinct embeddings is compared once. With a gallery every
            embedding is compared with every item of it.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery` is.
        similarity: ``"cosine"``, ``"dot"`` or ``"euclidean"`` (minus the squared distance).
        far: shares of accepted negatives, above 0 and below 1.
        pairs: (M, 2) integers, an embedding and an item of the gallery (or another embedding): only these are compared,
            each as often as it is given. None: all.
        groups: (Q,), any kind of label: pairs with the same label and the same group are left out, as re-identification
            leaves out images of one camera.
        gallery_groups: (G,). Given if and only if `gallery` and `groups` are.
        folds: number of folds of the given pairs, in order, or (M,) the fold of each: measures `accuracy`, that of each
            fold at the threshold that is best on the others (LFW's protocol, with 10 folds). Needs `pairs`.
        metrics: which of ``"tar"``, ``"eer"`` and ``"auc"`` to measure. Over all pairs the AUC takes several times as
            long as the others together, and EER and AUC hold the positives' scores, of at most 2**22 pairs.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared; the total grows from one step to the next.

    Returns:
        The metrics; those that weren't asked for are None, or empty.

    Raises:
        TypeError: if an array has the wrong kind of dtype.
        ValueError: if shapes don't match or are empty, a number isn't finite, a row is all zeros under the cosine, a
            FAR is not between 0 and 1, a pair names an absent item or one twice, or no pair is positive or none is
            negative.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import verify
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> result = verify(x, [0, 0, 1, 1, 1], far=0.1)
        >>> round(result.auc, 4), round(result.eer, 4)
        (0.8333, 0.3333)
    """
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    checked_far, wanted = check_far(far), _check_metrics(metrics)
    checked_threads = arguments.threads(threads)
    queries_QD = arguments.embeddings(embeddings, "embeddings", "queries")
    labels_Q = arguments.labels(labels, "labels", queries_QD, "embeddings")
    check_labels_of_gallery(gallery, gallery_labels, None, "gallery")
    gallery_GD = code_G = None
    if gallery is None or gallery_labels is None:
        (code_Q,) = arguments.encode(labels_Q)
    else:
        gallery_GD = arguments.embeddings(gallery, "gallery", "items")
        arguments.same_width(gallery_GD, "gallery", queries_QD, "embeddings")
        labels_G = arguments.labels(gallery_labels, "gallery_labels", gallery_GD, "gallery")
        code_Q, code_G = arguments.encode(labels_Q, labels_G)
    group_Q, group_G = _check_groups(groups, gallery_groups, queries_QD, gallery_GD)
    if pairs is not None:
        selected = select_pairs(
            pairs,
            (code_Q, code_Q if code_G is None else code_G),
            None if group_Q is None else (group_Q, group_Q if group_G is None else group_G),
            folds,
            own_gallery=gallery_GD is None,
        )
        score_M = _native.pair_scores(
            queries_QD, gallery_GD, selected.pairs, similarity=similarity, threads=checked_threads
        )
        return measure_pairs(score_M, selected, checked_far, wanted)
    if folds is not None:
        raise ValueError("folds came without pairs; expected both, since folds divide given pairs")
    n_positive, n_negative = _count_pairs(code_Q, code_G, group_Q, group_G)
    check_numbers(n_positive, n_negative)
    limits = [accepted_at_most(share, n_negative) for share in checked_far] if "tar" in wanted else []
    points, slots = _native.verify(
        queries_QD,
        code_Q,
        gallery_GD,
        code_G,
        groups=group_Q,
        gallery_groups=group_G,
        similarity=similarity,
        positives=n_positive,
        negatives=n_negative,
        ranks=[limit + 1 for limit in limits],
        equal_errors="eer" in wanted,
        slots="auc" in wanted,
        threads=checked_threads,
        progress=progress,
    )
    at_far = points[: len(limits)]
    eer = eer_threshold = None
    if "eer" in wanted:
        eer_threshold = points[-1][0]
        eer = equal_error_rate(points[-1][1:], n_negative, n_positive)
    return Verification(
        tar={share: divide(point[3], n_positive) for share, point in zip(checked_far, at_far)},
        threshold={share: next_above(point[0]) for share, point in zip(checked_far, at_far)},
        eer=eer,
        eer_threshold=eer_threshold,
        auc=None if slots is None else area(*slots, n_negative, n_positive),
        n_positive=n_positive,
        n_negative=n_negative,
        roc=None if slots is None else roc_of_slots(*slots, n_negative, n_positive),
    )


def check_far(far: Iterable[float] | float) -> list[float]:
    """Return distinct shares above 0 and below 1, in the order given."""
    try:
        shares = [float(share) for share in ([far] if isinstance(far, (int, float, np.number)) else far)]
    except (TypeError, ValueError) as error:
        raise TypeError(f"far is {far!r}; expected numbers above 0 and below 1") from error
    for share in shares:
        if not 0 < share < 1:
            raise ValueError(f"far holds {share}; expected shares of negatives above 0 and below 1")
    return list(dict.fromkeys(shares))


def _check_metrics(metrics: Sequence[str]) -> set[str]:
    if isinstance(metrics, str):
        metrics = (metrics,)
    return {arguments.one_of(name, "each of metrics", METRICS) for name in metrics}


def _check_groups(
    groups: object, gallery_groups: object, queries: npt.NDArray[Any], gallery: npt.NDArray[Any] | None
) -> tuple[_Codes | None, _Codes | None]:
    if gallery is None and gallery_groups is not None:
        raise ValueError("gallery_groups came without gallery; expected groups alone")
    if gallery is not None and (groups is None) != (gallery_groups is None):
        given, missing = ("groups", "gallery_groups") if groups is not None else ("gallery_groups", "groups")
        raise ValueError(f"{given} came without {missing}; expected both, or neither")
    if groups is None:
        return None, None
    groups_Q = arguments.labels(groups, "groups", queries, "embeddings")
    if gallery is None:
        (group_Q,) = arguments.encode(groups_Q)
        return group_Q, None
    groups_G = arguments.labels(gallery_groups, "gallery_groups", gallery, "gallery")
    group_Q, group_G = arguments.encode(groups_Q, groups_G)
    return group_Q, group_G


def _count_pairs(
    code_Q: _Codes, code_G: _Codes | None, group_Q: _Codes | None, group_G: _Codes | None
) -> tuple[int, int]:
    """Return the numbers of positive and of negative pairs."""
    same_label = _count_equal(code_Q, code_G)
    left_out = 0
    if group_Q is not None:
        groups = int(max(group_Q.max(), 0 if group_G is None else group_G.max())) + 1
        both_Q = code_Q.astype(np.uint64) * np.uint64(groups) + group_Q
        both_G = None
        if code_G is not None and group_G is not None:
            both_G = code_G.astype(np.uint64) * np.uint64(groups) + group_G
        left_out = _count_equal(both_Q, both_G)
    n = len(code_Q)
    all_pairs = n * (n - 1) // 2 if code_G is None else n * len(code_G)
    return same_label - left_out, all_pairs - same_label


def _count_equal(a: npt.NDArray[Any], b: npt.NDArray[Any] | None) -> int:
    """Count pairs of equal entries: of one array, unordered pairs of two places."""
    values_a, counts_a = np.unique(a, return_counts=True)
    if b is None:
        return sum(count * (count - 1) // 2 for count in counts_a.tolist())
    values_b, counts_b = np.unique(b, return_counts=True)
    _, in_a, in_b = np.intersect1d(values_a, values_b, assume_unique=True, return_indices=True)
    return sum(i * j for i, j in zip(counts_a[in_a].tolist(), counts_b[in_b].tolist()))
