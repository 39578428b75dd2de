"""Verification of given pairs, whose scores are all held.

Shapes: `M` pairs, `F` folds.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.conversion import to_array
from dml_eval_rs.score_order import from_order, scores_of, to_order
from dml_eval_rs.verification_rates import (
    accepted_at_most,
    check_numbers,
    curve_of,
    divide,
    equal_error_rate,
)
from dml_eval_rs.verification_result import Verification
from dml_eval_rs.verification_sides import PairSides

_Codes = npt.NDArray[np.uint32]
_Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SelectedPairs:
    """Pairs of both kinds.

    Attributes:
        pairs: (M, 2) uint32.
        positive: (M,) bool.
        fold: (M,) uint32, the fold of each; None without folds.
    """

    pairs: npt.NDArray[np.uint32]
    positive: npt.NDArray[np.bool_]
    fold: _Codes | None


def verify_pairs(
    sides: PairSides,
    similarity: str,
    pairs: object,
    folds: object,
    far: list[float],
    wanted: set[str],
    threads: int | None,
) -> Verification:
    """Measure the given pairs of two sides."""
    groups = None if sides.groups is None else sides.of_both(sides.groups, sides.gallery_groups)
    codes = sides.of_both(sides.labels, sides.gallery_labels)
    selected = select_pairs(pairs, codes, groups, folds, own_gallery=sides.gallery is None)
    score_M = _native.pair_scores(
        sides.queries, sides.gallery, selected.pairs, similarity=similarity, threads=threads
    )
    return measure_pairs(score_M, selected, far, wanted)


def select_pairs(
    pairs: object,
    codes: tuple[_Codes, _Codes],
    groups: tuple[_Codes, _Codes] | None,
    folds: object,
    *,
    own_gallery: bool,
) -> SelectedPairs:
    """Check the pairs and their folds, and leave out those of the same label and group."""
    pairs_M2 = _check_pairs(pairs, (len(codes[0]), len(codes[1])), own_gallery)
    fold_M = None if folds is None else _check_folds(folds, len(pairs_M2))
    a_M, b_M = pairs_M2[:, 0], pairs_M2[:, 1]
    positive_M = codes[0][a_M] == codes[1][b_M]
    if groups is not None:
        kept_M = ~(positive_M & (groups[0][a_M] == groups[1][b_M]))
        pairs_M2, positive_M = pairs_M2[kept_M], positive_M[kept_M]
        fold_M = None if fold_M is None else fold_M[kept_M]
    n_positive = int(np.count_nonzero(positive_M))
    check_numbers(n_positive, len(positive_M) - n_positive)
    if fold_M is not None:
        (fold_M,) = arguments.encode(fold_M)
        if fold_M.max() == 0:
            raise ValueError("all pairs are in one fold; expected at least two folds")
    return SelectedPairs(pairs_M2, positive_M, fold_M)


def measure_pairs(
    score_M: npt.NDArray[np.float64], selected: SelectedPairs, far: list[float], wanted: set[str]
) -> Verification:
    """Measure pairs by their scores."""
    order_M = to_order(score_M)
    positives, negatives = np.sort(order_M[selected.positive]), np.sort(order_M[~selected.positive])
    n_positive, n_negative = len(positives), len(negatives)
    tar, threshold = {}, {}
    for share in far if "tar" in wanted else ():
        limit = int(negatives[n_negative - 1 - accepted_at_most(share, n_negative)])
        tar[share] = divide(_above(positives, limit), n_positive)
        threshold[share] = from_order(limit + 1)
    eer = eer_threshold = auc = roc = None
    if "eer" in wanted:
        eer_threshold, eer = _equal_errors(positives, negatives)
    if "auc" in wanted:
        distinct, numbers = np.unique(positives, return_counts=True)
        ends = np.searchsorted(negatives, distinct, "left"), np.searchsorted(negatives, distinct, "right")
        slots = np.diff(np.stack(ends, 1).reshape(-1), prepend=0, append=n_negative).astype(np.uint64)
        auc, roc = curve_of((scores_of(distinct), numbers.astype(np.uint64), slots), n_negative, n_positive)
    accuracy = accuracy_F = threshold_F = None
    if selected.fold is not None:
        shares, threshold_F = _measure_folds(order_M, selected.positive, selected.fold)
        accuracy_F = np.array([divide(share.numerator, share.denominator) for share in shares])
        mean = sum(shares, Fraction(0)) / len(shares)
        accuracy = divide(mean.numerator, mean.denominator)
    return Verification(
        tar=tar,
        threshold=threshold,
        eer=eer,
        eer_threshold=eer_threshold,
        auc=auc,
        n_positive=n_positive,
        n_negative=n_negative,
        roc=roc,
        accuracy=accuracy,
        fold_accuracy=accuracy_F,
        fold_threshold=threshold_F,
    )


def _above(scores: _Order, limit: int) -> int:
    """Count the ascending scores above a limit."""
    return len(scores) - int(np.searchsorted(scores, limit, "right"))


def _at_least(scores: _Order, limit: int) -> int:
    """Count the ascending scores of at least a limit."""
    return len(scores) - int(np.searchsorted(scores, limit, "left"))


def _equal_errors(positives: _Order, negatives: _Order) -> tuple[float, float]:
    """Return the largest score at which the shares of accepted positives and negatives reach 1, and the EER."""
    n_positive, n_negative = len(positives), len(negatives)
    scores = np.unique(np.concatenate([positives, negatives]))
    low, high = 0, len(scores) - 1  # all pairs are accepted at the lowest score
    while low < high:
        middle = (low + high + 1) // 2
        limit = int(scores[middle])
        accepted = n_positive * _at_least(negatives, limit) + n_negative * _at_least(positives, limit)
        if accepted >= n_positive * n_negative:
            low = middle
        else:
            high = middle - 1
    limit = int(scores[low])
    counts = (
        _above(negatives, limit),
        _at_least(negatives, limit),
        _above(positives, limit),
        _at_least(positives, limit),
    )
    return from_order(limit), equal_error_rate(counts, n_negative, n_positive)


def _measure_folds(
    order_M: _Order, positive_M: npt.NDArray[np.bool_], fold_M: _Codes
) -> tuple[list[Fraction], npt.NDArray[np.float64]]:
    """Return each fold's share of right pairs, and its threshold: the best on the others, of several the largest."""
    shares, thresholds = [], []
    for fold in range(int(fold_M.max()) + 1):
        inside_M = fold_M == fold
        positives = np.sort(order_M[positive_M & ~inside_M])
        negatives = np.sort(order_M[~positive_M & ~inside_M])
        scores = np.unique(np.concatenate([positives, negatives]))
        candidates = np.append(scores, to_order(np.array([np.inf])))[::-1]
        accepted = len(positives) - np.searchsorted(positives, candidates, "left")
        rejected = np.searchsorted(negatives, candidates, "left")
        threshold = int(candidates[np.argmax(accepted + rejected)])
        right = np.count_nonzero((order_M[inside_M] >= threshold) == positive_M[inside_M])
        shares.append(Fraction(int(right), int(np.count_nonzero(inside_M))))
        thresholds.append(from_order(threshold))
    return shares, np.array(thresholds)


def _check_pairs(pairs: object, sizes: tuple[int, int], own_gallery: bool) -> npt.NDArray[np.uint32]:
    pairs_M2 = to_array(pairs, "pairs", 2)
    if pairs_M2.ndim != 2 or pairs_M2.shape[1] != 2 or len(pairs_M2) == 0:
        raise ValueError(f"pairs has shape {pairs_M2.shape}; expected (pairs, 2) with at least one pair")
    if pairs_M2.dtype.kind not in "iu":
        raise TypeError(f"pairs has dtype {pairs_M2.dtype}; expected integers, the indices of two items")
    absent_M = ((pairs_M2 < 0) | (pairs_M2 >= np.array(sizes))).any(axis=1)
    if absent_M.any():
        at = int(np.argmax(absent_M))
        raise ValueError(
            f"pair {at} is {pairs_M2[at].tolist()}; expected indices below {sizes[0]} and {sizes[1]}, and none negative"
        )
    if own_gallery and (same_M := pairs_M2[:, 0] == pairs_M2[:, 1]).any():
        at = int(np.argmax(same_M))
        raise ValueError(f"pair {at} is {pairs_M2[at].tolist()}; expected two distinct items")
    return np.ascontiguousarray(pairs_M2, np.uint32)


def _check_folds(folds: Any, pairs: int) -> npt.NDArray[Any]:
    if np.ndim(folds) == 0:
        number = arguments.positive(folds, "folds")
        if not 2 <= number <= pairs:
            raise ValueError(f"folds is {number}; expected 2 to {pairs}, the number of pairs")
        return np.arange(pairs) * number // pairs
    fold_M = arguments.partition(folds, "folds")
    if len(fold_M) != pairs:
        raise ValueError(f"folds has shape {fold_M.shape}; expected ({pairs},), the fold of each pair")
    return fold_M
