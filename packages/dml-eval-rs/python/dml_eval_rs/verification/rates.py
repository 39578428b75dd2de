"""Rates of verification from exact counts of pairs, correctly rounded, and scores as integers in the same order.

Comparisons of those integers ignore the caller's floating-point environment: where it flushes subnormal numbers to
zero, numpy takes all of them for equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.verification.result import Roc, Verification
from dml_eval_rs.verification.sides import Asked

Counts = npt.NDArray[np.uint64]
Order = npt.NDArray[np.int64]
# The distinct scores of the positives, ascending, their numbers, and the negatives below the first, equal to it,
# between it and the second, and so on. A score may have no positive.
Slots = tuple[npt.NDArray[np.float64], Counts, Counts]
# A score, the negatives above it and at least there, and the positives above it and at least there.
Point = tuple[float, int, int, int, int]

_ALL_BUT_THE_SIGN = np.int64(2**63 - 1)


def measure_crossings(
    points: Sequence[Point], slots: Slots | None, asked: Asked, n_positive: int, n_negative: int
) -> Verification:
    """Measure by the first negative that each FAR refuses, and then by the score where errors are equal."""
    values, thresholds, roc = {}, {}, None
    at_far = dict(zip(asked.shares, points))
    for name in asked.names:
        if name in asked.far:
            point = at_far[asked.far[name]]
            values[name], thresholds[name] = divide(point[3], n_positive), next_above(point[0])
        elif name == "eer":
            values[name] = equal_error_rate(points[-1][1:], n_negative, n_positive)
            thresholds[name] = points[-1][0]
        elif slots is not None:
            values[name], roc = _curve_of(slots, n_negative, n_positive)
    return Verification(values, thresholds, n_positive, n_negative, roc)


def measure_distances(positives: Counts, negatives: Counts, asked: Asked) -> Verification:
    """Measure pairs of codes by their numbers at each distance from 0 on."""
    scores = (-np.arange(len(positives)))[::-1].astype(np.float64)
    return measure_scores(to_order(scores), positives[::-1], negatives[::-1], asked)


def measure_scores(order: Order, positives: Counts, negatives: Counts, asked: Asked) -> Verification:
    """Measure pairs by their numbers at each distinct score, ascending."""
    # The pairs at or above each score, and above all.
    n, p = (np.append(np.cumsum(of[::-1].astype(np.int64))[::-1], 0) for of in (negatives, positives))
    n_negative, n_positive = int(n[0]), int(p[0])

    def point(is_enough: Callable[[int, int], bool]) -> Point:
        """Find the largest score that accepts enough negatives and positives."""
        places = range(len(order))[::-1]
        at = places[bisect_left(places, True, key=lambda place: is_enough(int(n[place]), int(p[place])))]
        return from_order(int(order[at])), int(n[at + 1]), int(n[at]), int(p[at + 1]), int(p[at])

    limits = [accepted_at_most(share, n_negative) for share in asked.shares]
    points = [point(lambda n, p, limit=limit: n > limit) for limit in limits]  # type: ignore[misc]
    if "eer" in asked.names:
        points.append(point(lambda n, p: n_positive * n + n_negative * p >= n_positive * n_negative))
    slots = None
    if "auc" in asked.names:
        is_positive = positives > 0
        below = (n_negative - n).astype(np.uint64)
        edges = np.stack([below[:-1][is_positive], below[1:][is_positive]], axis=1).reshape(-1)
        between = np.diff(edges, prepend=np.uint64(0), append=np.uint64(n_negative))
        slots = scores_of(order[is_positive]), positives[is_positive], between
    return measure_crossings(points, slots, asked, n_positive, n_negative)


def divide(numerator: int, denominator: int) -> float:
    """Return the quotient of two integers, correctly rounded to even in any rounding mode of the caller."""
    # Python divides long integers in integer arithmetic, and short ones as floats, by the caller's mode.
    return (numerator << 64) / (denominator << 64)


def accepted_at_most(far: float, n_negative: int) -> int:
    """Return the largest number of negatives whose share of all, in float64, is at most `far`."""
    numerator, denominator = far.as_integer_ratio()
    number = numerator * n_negative // denominator
    return number + (divide(number + 1, n_negative) <= far)


def check_numbers(n_positive: int, n_negative: int) -> None:
    """Check that there are pairs of both kinds."""
    if n_positive == 0:
        raise ValueError(
            f"none of the {n_negative} pairs has equal labels; expected at least one positive pair"
        )
    if n_negative == 0:
        raise ValueError(
            f"all {n_positive} pairs have equal labels; expected at least one negative (impostor) pair"
        )


def equal_error_rate(counts: tuple[int, int, int, int], n_negative: int, n_positive: int) -> float:
    """Return where the line between two corners of the curve meets TAR = 1 − FAR, correctly rounded.

    `counts` are the negatives accepted at both corners, and the positives. The first corner is below that line, the
    second on it or above.
    """
    negatives_above, negatives_at_least, positives_above, positives_at_least = counts
    far, next_far = Fraction(negatives_above, n_negative), Fraction(negatives_at_least, n_negative)
    tar, next_tar = Fraction(positives_above, n_positive), Fraction(positives_at_least, n_positive)
    share = (1 - far - tar) / (next_far + next_tar - far - tar)
    rate = far + share * (next_far - far)
    return divide(rate.numerator, rate.denominator)


def _curve_of(slots: Slots, n_negative: int, n_positive: int) -> tuple[float, Roc]:
    """Return the ROC curve, after (2·#{positive > negative} + #{equal}) / (2·P·N), correctly rounded."""
    far, tar, threshold, twice_right = _native.roc_curve(*slots)
    return divide(twice_right, 2 * n_positive * n_negative), Roc(far=far, tar=tar, threshold=threshold)


def to_order(scores: npt.NDArray[np.float64]) -> Order:
    """Return an integer for each score: larger for larger ones; 1 more is the next float64 number."""
    return _flip_negative(scores.view(np.int64))


def scores_of(order: Order) -> npt.NDArray[np.float64]:
    """Return the scores of some integers."""
    return _flip_negative(order).view(np.float64)


def from_order(order: int) -> float:
    """Return the score of an integer."""
    return float(scores_of(np.array([order], np.int64))[0])


def next_above(score: float) -> float:
    """Return the least float64 number above a score."""
    return from_order(int(to_order(np.array([score]))[0]) + 1)


def _flip_negative(bits: Order) -> Order:
    flipped: Order = bits ^ ((bits >> 63) & _ALL_BUT_THE_SIGN)
    return flipped
