"""Checked arguments of a verification, and its rates from exact counts of pairs, correctly rounded.

Scores are compared as integers in the same order, which ignores the caller's floating-point environment: where it
flushes subnormal numbers to zero, numpy takes all of them for equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Sides
from dml_eval_rs.matches.relation import Relation, count_equal, pair_codes, relate
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.names import check_metrics, family_of
from dml_eval_rs.verification.result import Roc, Verification

Counts = npt.NDArray[np.uint64]
Order = npt.NDArray[np.int64]
# The distinct scores of the positives, ascending, their numbers, and the negatives below the first, equal to it,
# between it and the second, and so on. A score may have no positive.
Slots = tuple[npt.NDArray[np.float64], Counts, Counts]
# A score, the negatives above it and at least there, and the positives above it and at least there.
Point = tuple[float, int, int, int, int]

_ALL_BUT_THE_SIGN = np.int64(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Asked:
    """The metrics to measure."""

    names: list[str]  # distinct, in the order asked
    far: dict[str, float]  # of the names "tar@far=X"

    @property
    def shares(self) -> list[float]:
        """The distinct FARs."""
        return list(dict.fromkeys(self.far.values()))


def check_asked(metrics: str | Iterable[str], *, in_folds: bool = False) -> Asked:
    """Check names of metrics; with folds add the accuracy."""
    names = check_metrics(metrics, ("verification",))
    if "accuracy" in names and not in_folds:
        raise ValueError("metrics holds 'accuracy', which needs folds of given pairs; expected both")
    if in_folds and "accuracy" not in names:
        names.append("accuracy")
    far = {}
    for name in names:
        if family_of(name) == "tar@far=X":
            # Rounded to nearest, since `float` rounds short decimals in the caller's mode.
            exact = Fraction(name.partition("=")[2])
            far[name] = divide(exact.numerator, exact.denominator)
    return Asked(names, far)


def check_sides(
    embeddings: object, labels: object, gallery: object, gallery_labels: object, similarity: str
) -> tuple[Sides, Relation]:
    """Check both sides; the rows still include junk."""
    sides = arguments.to_sides(embeddings, gallery, similarity, ("embeddings", "gallery"))
    if isinstance(labels, Relevance):
        raise ValueError("labels is a Relevance, which lists matches; expected an array or Labels")
    relation = relate(labels, gallery_labels, sides, unmatched="zero")
    if relation.ignored_offsets is not None:
        raise ValueError("labels have ignored items, which verification doesn't leave out; expected none")
    return sides, relation


def count_pairs(relation: Relation) -> tuple[int, int]:
    """Return the numbers of positive and of negative pairs, at least one each."""
    label_Q, label_G = relation.codes
    alone, n = relation.gallery_labels is None, len(label_Q)

    def count(queries: npt.NDArray[Any], items: npt.NDArray[Any]) -> int:
        """Count the pairs of equal codes; without a gallery each unordered pair of two items once."""
        equal = int(count_equal(queries, items).sum())
        return (equal - n) // 2 if alone else equal

    same_label, left_out = count(label_Q, label_G), 0
    if relation.groups is not None:
        group_G = relation.groups if relation.gallery_groups is None else relation.gallery_groups
        left_out = count(pair_codes(label_Q, relation.groups), pair_codes(label_G, group_G))
    every = n * (n - 1) // 2 if alone else n * len(label_G)
    return check_numbers(same_label - left_out, every - same_label)


def measure_crossings(
    points: Sequence[Point], slots: Slots | None, asked: Asked, n_positive: int, n_negative: int
) -> Verification:
    """Measure by the first negative that each FAR refuses, and then by the score where errors are equal."""
    values, thresholds, roc = {}, {}, None
    at_far = dict(zip(asked.shares, points))
    for name in asked.names:
        if name in asked.far:
            point = at_far[asked.far[name]]
            values[name] = divide(point[3], n_positive)
            thresholds[name] = from_order(int(to_order(np.array([point[0]]))[0]) + 1)
        elif name == "eer":
            values[name] = equal_error_rate(points[-1][1:], n_negative, n_positive)
            thresholds[name] = points[-1][0]
        elif slots is not None:
            # The area is (2·#{positive > negative} + #{equal}) / (2·P·N).
            far, tar, threshold, twice_right = _native.roc_curve(*slots)
            roc = Roc(far=far, tar=tar, threshold=threshold)
            values[name] = divide(twice_right, 2 * n_positive * n_negative)
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


def check_numbers(n_positive: int, n_negative: int) -> tuple[int, int]:
    """Return the numbers of pairs of both kinds, or raise a ValueError if one is 0."""
    if n_positive == 0:
        raise ValueError(f"none of the {n_negative} pairs has equal labels; expected at least one positive")
    if n_negative == 0:
        raise ValueError(
            f"all {n_positive} pairs have equal labels; expected at least one negative (impostor) pair"
        )
    return n_positive, n_negative


def equal_error_rate(counts: tuple[int, int, int, int], n_negative: int, n_positive: int) -> float:
    """Return where the line between two corners of the curve meets TAR = 1 − FAR, correctly rounded."""
    # The negatives and positives that are accepted at the corner below that line, and at the one on it or above.
    negatives_above, negatives_at_least, positives_above, positives_at_least = counts
    far, next_far = Fraction(negatives_above, n_negative), Fraction(negatives_at_least, n_negative)
    tar, next_tar = Fraction(positives_above, n_positive), Fraction(positives_at_least, n_positive)
    share = (1 - far - tar) / (next_far + next_tar - far - tar)
    rate = far + share * (next_far - far)
    return divide(rate.numerator, rate.denominator)


def to_order(scores: npt.NDArray[np.float64]) -> Order:
    """Return an integer for each score: larger for larger ones; 1 more is the next float64 number."""
    return _flip_negative(scores.view(np.int64))


def scores_of(order: Order) -> npt.NDArray[np.float64]:
    """Return the scores of some integers."""
    return _flip_negative(order).view(np.float64)


def from_order(order: int) -> float:
    """Return the score of an integer."""
    return float(scores_of(np.array([order], np.int64))[0])


def _flip_negative(bits: Order) -> Order:
    flipped: Order = bits ^ ((bits >> 63) & _ALL_BUT_THE_SIGN)
    return flipped
