"""Slow, obvious verification in rational arithmetic, written from
docs/reference/verification.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from eval_support.scores_reference import score


def all_pairs(
    embeddings: np.ndarray,
    labels: Sequence[Any],
    gallery: np.ndarray | None,
    gallery_labels: Sequence[Any] | None,
    groups: Sequence[Any] | None,
    gallery_groups: Sequence[Any] | None,
    similarity: str,
) -> tuple[list[float], list[float]]:
    """Return the scores of all positive pairs and of all negative pairs."""
    if gallery is None or gallery_labels is None:
        places = list(itertools.combinations(range(len(embeddings)), 2))
        gallery, gallery_labels, gallery_groups = embeddings, labels, groups
    else:
        places = list(itertools.product(range(len(embeddings)), range(len(gallery))))
    positives, negatives = [], []
    for i, j in places:
        if labels[i] != gallery_labels[j]:
            negatives.append(score(embeddings[i], gallery[j], similarity))
        elif groups is None or gallery_groups is None or groups[i] != gallery_groups[j]:
            positives.append(score(embeddings[i], gallery[j], similarity))
    return positives, negatives


def share(scores: Sequence[float], threshold: float) -> Fraction:
    return Fraction(sum(s >= threshold for s in scores), len(scores))


def corners(
    positives: Sequence[float], negatives: Sequence[float]
) -> list[tuple[Fraction, Fraction, float]]:
    """Return FAR, TAR and threshold for all scores, largest score first."""
    thresholds = [math.inf, *sorted({*positives, *negatives}, reverse=True)]
    return [(share(negatives, t), share(positives, t), t) for t in thresholds]


def tar_at(
    far: float, positives: Sequence[float], negatives: Sequence[float]
) -> tuple[float, float]:
    """Return the largest TAR if the FAR must not exceed `far`, and the least threshold to reach
    it.
    """
    allowed = [(tar, t) for f, tar, t in corners(positives, negatives) if float(f) <= far]
    refused = [t for f, _, t in corners(positives, negatives) if float(f) > far]
    return float(max(tar for tar, _ in allowed)), math.nextafter(max(refused), math.inf)


def equal_error_rate(positives: Sequence[float], negatives: Sequence[float]) -> tuple[float, float]:
    """Find where a line between corners crosses TAR = 1 − FAR; return the FAR, and the second
    corner's threshold.
    """
    points = corners(positives, negatives)
    for (far, tar, _), (next_far, next_tar, threshold) in itertools.pairwise(points):
        if next_far + next_tar >= 1:
            part = (1 - far - tar) / (next_far + next_tar - far - tar)
            return float(far + part * (next_far - far)), threshold
    raise AssertionError("the last corner is (1, 1)")


def area(positives: Sequence[float], negatives: Sequence[float]) -> float:
    twice = sum(2 * (p > n) + (p == n) for p in positives for n in negatives)
    return float(Fraction(twice, 2 * len(positives) * len(negatives)))


def micro_ap(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Average the precision over positives, at the positive's score as the threshold."""
    precisions = []
    for threshold in positives:
        hits, misses = (sum(s >= threshold for s in of) for of in (positives, negatives))
        precisions.append(Fraction(hits, hits + misses))
    return float(sum(precisions, Fraction(0)) / len(precisions))


def fold_accuracies(
    scores: Sequence[float], positive: Sequence[bool], folds: Sequence[Any]
) -> tuple[list[float], list[float], float]:
    """Return the accuracy and threshold per fold, and the mean accuracy."""
    accuracies, thresholds = [], []
    for fold in sorted(set(folds)):
        others = [(s, p) for s, p, f in zip(scores, positive, folds) if f != fold]
        candidates = [math.inf, *sorted({s for s, _ in others}, reverse=True)]
        threshold = max(candidates, key=lambda t: sum((s >= t) == p for s, p in others))
        inside = [(s >= threshold) == p for s, p, f in zip(scores, positive, folds) if f == fold]
        accuracies.append(Fraction(sum(inside), len(inside)))
        thresholds.append(threshold)
    return (
        [float(a) for a in accuracies],
        thresholds,
        float(sum(accuracies, Fraction(0)) / len(accuracies)),
    )


def resampled_curve(
    thresholds: Sequence[float],
    pairs: Sequence[tuple[Any, Any, float]],
    weights: dict[Any, float],
    *,
    of_both: bool,
) -> list[tuple[float, float]]:
    """Return FAR and TAR at (0, 0), all thresholds and (1, 1), when identities are drawn as often
    as the weights say.

    A pair has its first identity's weight. If `of_both`, a pair of different identities has both
    weights' sum − 1.
    """
    kinds: list[list[tuple[float, float]]] = [[], []]
    for a, b, s in pairs:
        weight = weights[a] + weights[b] - 1 if of_both and a != b else weights[a]
        kinds[a == b].append((s, weight))
    shares = []
    for kind in kinds:
        accepted = [max(0.0, sum(w for s, w in kind if s >= t)) for t in [*thresholds, -math.inf]]
        shares.append(
            [0.0] + [max(accepted[: i + 1]) / max(accepted) for i in range(len(accepted))]
        )
    return list(zip(*shares))


def read_metric(name: str, curve: Sequence[tuple[float, float]]) -> float:
    """Read a metric from the corners of a resampled curve; see docs/reference/verification.md."""
    lines = list(itertools.pairwise(curve))
    if name == "auc":
        return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in lines)
    if name == "eer":
        (far, tar), (next_far, next_tar) = next(line for line in lines if sum(line[1]) >= 1)
        return far + (1 - far - tar) / (next_far + next_tar - far - tar) * (next_far - far)
    share = float(name.partition("=")[2])
    if curve[1][0] > share:  # below the smallest FAR of the grid
        return curve[1][1]
    (far, tar), (next_far, next_tar) = [line for line in lines[1:] if line[0][0] <= share][-1]
    part = math.log(share / far) / math.log(next_far / far) if far > 0 else share / next_far
    return tar + part * (next_tar - tar)
