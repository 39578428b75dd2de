"""Verification: how well a threshold tells pairs of one label from pairs of two, over all pairs or given ones.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code, `M` pairs, `F` folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.peers import Peers, check_alike
from dml_eval_rs.retrieval import SIMILARITIES, Progress, Similarity
from dml_eval_rs.verification_counts import measure_crossings, measure_distances
from dml_eval_rs.verification_pairs import verify_pairs
from dml_eval_rs.verification_rates import accepted_at_most, check_numbers
from dml_eval_rs.verification_result import Verification
from dml_eval_rs.verification_sides import METRICS, check_far, check_metrics, check_sides

VerificationMetric = Literal["tar", "eer", "auc"]


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
    peers: Peers | None = None,
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
        peers: processes that share the comparison of all pairs: all make this call with the same arrays, and all get
            the bits of a single process.

    Returns:
        The metrics; those that weren't asked for are None, or empty.

    Raises:
        TypeError: if an array has the wrong kind of dtype.
        ValueError: if shapes don't match or are empty, a number isn't finite, a row is all zeros under the cosine, a
            FAR is not between 0 and 1, a pair names an absent item or one twice, no pair is positive or none is
            negative, or the peers' arrays differ.
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
    shares, wanted = check_far(far), check_metrics(metrics)
    checked_threads = arguments.threads(threads)
    sides = check_sides(
        embeddings, "embeddings", labels, gallery, "gallery", gallery_labels, groups, gallery_groups
    )
    if pairs is not None:
        _check_alone(peers)
        return verify_pairs(sides, similarity, pairs, folds, shares, wanted, checked_threads)
    if folds is not None:
        raise ValueError("folds came without pairs; expected both, since folds divide given pairs")
    n_positive, n_negative = sides.count_pairs()
    check_numbers(n_positive, n_negative)
    check_alike(peers, (similarity, shares, sorted(wanted)), *sides.arrays())
    limits = [accepted_at_most(share, n_negative) for share in shares] if "tar" in wanted else []
    points, slots = _native.verify(
        sides.queries,
        sides.labels,
        sides.gallery,
        sides.gallery_labels,
        groups=sides.groups,
        gallery_groups=sides.gallery_groups,
        similarity=similarity,
        positives=n_positive,
        negatives=n_negative,
        ranks=[limit + 1 for limit in limits],
        equal_errors="eer" in wanted,
        slots="auc" in wanted,
        threads=checked_threads,
        progress=progress,
        peers=peers,
    )
    return measure_crossings(points, slots, shares, wanted, n_positive, n_negative)


def verify_codes(
    codes: npt.ArrayLike,
    labels: npt.ArrayLike,
    gallery_codes: npt.ArrayLike | None = None,
    gallery_labels: npt.ArrayLike | None = None,
    *,
    far: Iterable[float] | float = (1e-1, 1e-2, 1e-3, 1e-4),
    pairs: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    gallery_groups: npt.ArrayLike | None = None,
    folds: int | npt.ArrayLike | None = None,
    metrics: Sequence[VerificationMetric] = METRICS,  # type: ignore[assignment]
    threads: int | None = None,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> Verification:
    """Measure the metrics of `verify` for binary codes: a pair's score is minus the Hamming distance.

    score(a, b) = −(the number of differing bits), so a threshold of −t accepts the pairs within a distance of t. All
    metrics follow from the numbers of pairs at each distance: none takes longer, and no number of pairs is too large.

    Args:
        codes: (Q, W) uint8, eight bits per byte, at most 65,536 bits per code: see `binarize`.
        labels: (Q,) integers of any width, booleans or strings.
        gallery_codes: (G, W) uint8; None: each unordered pair of two distinct codes is compared once.
        gallery_labels: (G,), of the labels' kind. Given if and only if `gallery_codes` is.
        far, pairs, groups, gallery_groups, folds, metrics: as in `verify`.
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.
        progress: called as ``progress(done, total)``, in pairs compared.
        peers: as in `verify`.

    Returns:
        As `verify`.

    Raises:
        TypeError: if codes aren't uint8, or labels are floats.
        ValueError: as `verify`, or if a code is too wide.
        KeyboardInterrupt: within a second of Ctrl-C.
    """
    shares, wanted = check_far(far), check_metrics(metrics)
    checked_threads = arguments.threads(threads)
    sides = check_sides(
        codes, "codes", labels, gallery_codes, "gallery_codes", gallery_labels, groups, gallery_groups
    )
    if pairs is not None:
        _check_alone(peers)
        return verify_pairs(sides, "hamming", pairs, folds, shares, wanted, checked_threads)
    if folds is not None:
        raise ValueError("folds came without pairs; expected both, since folds divide given pairs")
    check_numbers(*sides.count_pairs())
    check_alike(peers, (shares, sorted(wanted)), *sides.arrays())
    positives, negatives = _native.count_distances(
        sides.queries,
        sides.labels,
        sides.gallery,
        sides.gallery_labels,
        groups=sides.groups,
        gallery_groups=sides.gallery_groups,
        threads=checked_threads,
        progress=progress,
        peers=peers,
    )
    return measure_distances(positives, negatives, shares, wanted)


def _check_alone(peers: Peers | None) -> None:
    if peers is not None:
        raise ValueError("peers came with pairs, whose scores one process computes; expected one of them")
