"""Verification of given pairs, whose scores are all held.

Shapes: `M` pairs, `F` folds.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.verification.by_identity import Identities
from dml_eval_rs.verification.rates import (
    Order,
    check_numbers,
    divide,
    from_order,
    measure_scores,
    to_order,
)
from dml_eval_rs.verification.result import Verification
from dml_eval_rs.verification.sides import Asked, Codes, PairSides


def verify_pairs(
    sides: PairSides, similarity: str, pairs: object, folds: object, asked: Asked, threads: int | None
) -> Verification:
    """Measure the given pairs of two sides, but those with junk, and those of the same label and group."""
    pairs_M2 = _check_pairs(pairs, sides)
    fold_M = None if folds is None else _check_folds(folds, len(pairs_M2))
    kept_M = (pairs_M2 >= 0).all(axis=1)
    a_M, b_M = pairs_M2.T
    positive_M = sides.codes[0][a_M] == sides.codes[1][b_M]
    kept_M &= ~(positive_M & sides.same_group(a_M, b_M))
    positive_M = positive_M[kept_M]
    n_positive = int(np.count_nonzero(positive_M))
    check_numbers(n_positive, len(positive_M) - n_positive)
    if fold_M is not None:
        (fold_M,) = arguments.encode(fold_M[kept_M])
        if fold_M.max() == 0:
            raise ValueError("all pairs are in one fold; expected at least two folds")
    kept_M2 = np.ascontiguousarray(pairs_M2[kept_M], np.uint32)
    score_M = _native.pair_scores(
        sides.queries, sides.gallery, kept_M2, similarity=similarity, threads=threads
    )
    found = _measure(score_M, positive_M, fold_M, asked)
    given = kept_M2, positive_M, score_M
    return replace(found, _identities=Identities(sides, similarity, threads, given))


def _measure(
    score_M: npt.NDArray[np.float64], positive_M: npt.NDArray[np.bool_], fold_M: Codes | None, asked: Asked
) -> Verification:
    """Measure pairs by their scores."""
    order_M = to_order(score_M)
    order, at_M = np.unique(order_M, return_inverse=True)
    positives, negatives = (
        np.bincount(at_M.reshape(-1)[kind_M], minlength=len(order)).astype(np.uint64)
        for kind_M in (positive_M, ~positive_M)
    )
    found = measure_scores(order, positives, negatives, asked)
    if fold_M is None:
        return found
    shares, threshold_F = _measure_folds(order_M, positive_M, fold_M)
    mean = sum(shares, Fraction(0)) / len(shares)
    values = {**found, "accuracy": divide(mean.numerator, mean.denominator)}
    return replace(
        found,
        _values={name: values[name] for name in asked.names},
        fold_accuracy=np.array([divide(share.numerator, share.denominator) for share in shares]),
        fold_threshold=threshold_F,
    )


def _above(scores: Order, limits: Any) -> Any:
    """Count the ascending scores above limits."""
    return len(scores) - np.searchsorted(scores, limits, "right")


def _measure_folds(
    order_M: Order, positive_M: npt.NDArray[np.bool_], fold_M: Codes
) -> tuple[list[Fraction], npt.NDArray[np.float64]]:
    """Return each fold's share of right pairs, and its threshold: the best on the others, of several the largest."""
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


def _check_pairs(pairs: object, sides: PairSides) -> npt.NDArray[np.int64]:
    """Return places in both sides, -1 for junk."""
    pairs_M2 = to_array(pairs, "pairs", 2)
    if pairs_M2.ndim != 2 or pairs_M2.shape[1] != 2 or len(pairs_M2) == 0:
        raise ValueError(f"pairs has shape {pairs_M2.shape}; expected (pairs, 2) with at least one pair")
    if pairs_M2.dtype.kind not in "iu":
        raise TypeError(f"pairs has dtype {pairs_M2.dtype}; expected integers, the indices of two items")
    bad_M = ((pairs_M2 < 0) | (pairs_M2 >= np.array(sides.given))).any(axis=1)
    expected = "indices below {} and {}, and none negative".format(*sides.given)
    if sides.gallery is None and not bad_M.any():
        bad_M, expected = pairs_M2[:, 0] == pairs_M2[:, 1], "two distinct items"
    if bad_M.any():
        at = int(np.argmax(bad_M))
        raise ValueError(f"pair {at} is {pairs_M2[at].tolist()}; expected {expected}")
    pairs_M2 = pairs_M2.astype(np.int64)
    if sides.kept is not None:
        place = np.full(sides.given[1], -1, np.int64)
        place[sides.kept] = np.arange(len(sides.kept))
        first = 0 if sides.gallery is None else 1
        pairs_M2[:, first:] = place[pairs_M2[:, first:]]
    return pairs_M2


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
