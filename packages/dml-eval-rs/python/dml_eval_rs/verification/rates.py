"""Check the arguments of a verification, then compute correctly rounded rates from exact counts of
pairs.

Scores are mapped to integers to be compared, because subnormal numbers would be equal in numpy if
the caller's floating-point environment flushes these to zero.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Sides
from dml_eval_rs.matches.relation import Relation, count_equal, pair_codes, relate
from dml_eval_rs.metrics.names import check_metrics
from dml_eval_rs.verification.result import Roc, Verification

Counts = npt.NDArray[np.uint64]
Order = npt.NDArray[np.int64]
# The sorted distinct scores of positives; the number of positives per score (can be 0); and the
# number of negatives below the first score, equal to the first score, between the first and second
# score, and so on.
Slots = tuple[npt.NDArray[np.float64], Counts, Counts]
# A score, the number of negatives above it and with at least this score, and the same two numbers
# for positives.
Point = tuple[float, int, int, int, int]

_ALL_BUT_THE_SIGN = np.int64(2**63 - 1)


def check_names(metrics: str | Iterable[str], *, in_folds: bool = False) -> list[str]:
    """Return distinct names of metrics, in the requested order; add the accuracy if there are
    folds.
    """
    names = check_metrics(metrics, ("verification",))
    if "accuracy" in names and not in_folds:
        raise ValueError("metrics contains 'accuracy', but folds is None; expected pairs and folds")
    if in_folds and "accuracy" not in names:
        names.append("accuracy")
    return names


def shares_of(names: list[str]) -> dict[str, float]:
    """Return X per name ``"tar@far=X"``, rounded to nearest; `float` would use the caller's
    rounding mode.
    """
    exact = {name: Fraction(name.partition("=")[2]) for name in names if name.startswith("tar@")}
    return {name: divide(share.numerator, share.denominator) for name, share in exact.items()}


def check_sides(
    embeddings: object, labels: object, gallery: object, gallery_labels: object, similarity: str
) -> tuple[Sides, Relation]:
    """Check both sides; note that rows still include junk."""
    sides = arguments.to_sides(embeddings, gallery, similarity, ("embeddings", "gallery"))
    return sides, check_relation(relate(labels, gallery_labels, sides))


def check_relation(relation: Relation) -> Relation:
    """Check that a relation is defined by labels and does not contain ignored items."""
    if relation.offsets is not None:
        raise ValueError("labels is a Relevance; expected an array or Labels")
    if relation.ignored_offsets is not None:
        raise ValueError(
            "labels have ignored items, which verification can't exclude; expected none"
        )
    return relation


def count_pairs(relation: Relation) -> tuple[int, int]:
    """Return the numbers of positive and negative pairs; raise a ValueError if a number is 0."""
    label_Q, label_G = relation.codes
    alone, n = relation.gallery_labels is None, len(label_Q)

    def count(queries: npt.NDArray[Any], items: npt.NDArray[Any]) -> int:
        """Count the pairs with equal codes; if a gallery is not given, count unordered pairs of
        different items.
        """
        equal = int(count_equal(queries, items).sum())
        return (equal - n) // 2 if alone else equal

    same_label, excluded = count(label_Q, label_G), 0
    if relation.groups is not None:
        group_G = relation.groups if relation.gallery_groups is None else relation.gallery_groups
        excluded = count(pair_codes(label_Q, relation.groups), pair_codes(label_G, group_G))
    total = n * (n - 1) // 2 if alone else n * len(label_G)
    return check_numbers(same_label - excluded, total - same_label)


def measure_crossings(
    points: Sequence[Point], slots: Slots | None, names: list[str], n_positive: int, n_negative: int
) -> Verification:
    """Compute the metrics from points on the curve: per FAR, the first negative to reject; at the
    end, the point where both error rates are equal.
    """
    values, thresholds, roc = {}, {}, None
    point_of = dict(zip(shares_of(names), points))
    for name in names:
        if point := point_of.get(name):
            values[name] = divide(point[3], n_positive)
            thresholds[name] = from_order(int(to_order(np.array([point[0]]))[0]) + 1)
        elif name == "eer":
            values[name] = equal_error_rate(points[-1][1:], n_negative, n_positive)
            thresholds[name] = points[-1][0]
        elif slots is not None and name == "micro_ap":
            values[name] = average_precision(slots[1], slots[2])
        elif slots is not None:
            # The area is (2·#{positive > negative} + #{equal}) / (2·P·N).
            far, tar, threshold, twice_right = _native.roc_curve(*slots)
            roc = Roc(far=far, tar=tar, threshold=threshold)
            values[name] = divide(twice_right, 2 * n_positive * n_negative)
    return Verification(values, thresholds, n_positive, n_negative, roc)


def wants_slots(names: list[str]) -> bool:
    """Whether a metric needs the number of negatives between the scores of positives."""
    return "auc" in names or "micro_ap" in names


def average_precision(positives: Counts, between: Counts) -> float:
    """Average the precision at the scores of positives, each with all pairs of at least this score;
    see `Slots`.
    """
    hits, misses = (np.cumsum(of[::-1].astype(np.float64))[::-1] for of in (positives, between))
    return math.fsum(positives * (hits / (hits + misses[1::2]))) / float(hits[0])


def measure_distances(positives: Counts, negatives: Counts, names: list[str]) -> Verification:
    """Compute the metrics for codes, given the numbers of pairs with distance 0, 1, and so on."""
    scores = (-np.arange(len(positives)))[::-1].astype(np.float64)
    return measure_scores(to_order(scores), positives[::-1], negatives[::-1], names)


def measure_scores(
    order: Order, positives: Counts, negatives: Counts, names: list[str]
) -> Verification:
    """Compute the metrics, given the number of pairs per distinct score; scores must be sorted."""
    # n and p count the pairs with at least this score. The last entry is 0, above all scores.
    n, p = (
        np.append(np.cumsum(of[::-1].astype(np.int64))[::-1], 0) for of in (negatives, positives)
    )
    n_negative, n_positive = int(n[0]), int(p[0])

    def point(is_enough: Callable[[int, int], bool]) -> Point:
        """Find the largest score that accepts enough negatives and positives."""
        places = range(len(order))[::-1]
        at = places[
            bisect_left(places, True, key=lambda place: is_enough(int(n[place]), int(p[place])))
        ]
        return from_order(int(order[at])), int(n[at + 1]), int(n[at]), int(p[at + 1]), int(p[at])

    limits = [accepted_at_most(share, n_negative) for share in shares_of(names).values()]
    points = [point(lambda n, p, limit=limit: n > limit) for limit in limits]  # type: ignore[misc]
    if "eer" in names:
        points.append(
            point(lambda n, p: n_positive * n + n_negative * p >= n_positive * n_negative)
        )
    slots = None
    if wants_slots(names):
        is_positive = positives > 0
        below = (n_negative - n).astype(np.uint64)
        edges = np.stack([below[:-1][is_positive], below[1:][is_positive]], axis=1).reshape(-1)
        between = np.diff(edges, prepend=np.uint64(0), append=np.uint64(n_negative))
        slots = scores_of(order[is_positive]), positives[is_positive], between
    return measure_crossings(points, slots, names, n_positive, n_negative)


def divide(numerator: int, denominator: int) -> float:
    """Return the quotient of two integers, correctly rounded to even; the caller's rounding mode is
    not used.
    """
    # Python uses integer arithmetic to divide long integers, but the caller's rounding mode for
    # short integers.
    return (numerator << 64) / (denominator << 64)


def accepted_at_most(far: float, n_negative: int) -> int:
    """Return the number of negatives that a threshold can accept, if the share, in float64, must
    not exceed `far`.
    """
    numerator, denominator = far.as_integer_ratio()
    number = numerator * n_negative // denominator
    return number + (divide(number + 1, n_negative) <= far)


def first_rejected(names: list[str], n_negative: int) -> list[int]:
    """Return the rank of the first negative that must be rejected, per ``"tar@far=X"``."""
    return [accepted_at_most(share, n_negative) + 1 for share in shares_of(names).values()]


def check_numbers(n_positive: int, n_negative: int) -> tuple[int, int]:
    """Return both numbers of pairs, or raise a ValueError if a number is 0."""
    if n_positive == 0:
        raise ValueError(
            f"none of the {n_negative} pairs has equal labels; expected at least one positive"
        )
    if n_negative == 0:
        raise ValueError(
            f"all {n_positive} pairs match; expected at least one negative (impostor) pair"
        )
    return n_positive, n_negative


def equal_error_rate(counts: tuple[int, int, int, int], n_negative: int, n_positive: int) -> float:
    """Return the FAR where the line between two corners of the ROC curve meets TAR = 1 − FAR,
    correctly rounded.
    """
    # Pairs accepted at the last corner below TAR = 1 − FAR, and at the next corner: negatives, then
    # positives.
    negatives_above, negatives_at_least, positives_above, positives_at_least = counts
    far, next_far = Fraction(negatives_above, n_negative), Fraction(negatives_at_least, n_negative)
    tar, next_tar = Fraction(positives_above, n_positive), Fraction(positives_at_least, n_positive)
    share = (1 - far - tar) / (next_far + next_tar - far - tar)
    rate = far + share * (next_far - far)
    return divide(rate.numerator, rate.denominator)


def to_order(scores: npt.NDArray[np.float64]) -> Order:
    """Map scores to integers that sort like the scores; add 1 to get the next float64 number."""
    return _flip_negative(scores.view(np.int64))


def scores_of(order: Order) -> npt.NDArray[np.float64]:
    """Map integers from `to_order` back to scores."""
    return _flip_negative(order).view(np.float64)


def from_order(order: int) -> float:
    """Map an integer from `to_order` back to the score."""
    return float(scores_of(np.array([order], np.int64))[0])


def _flip_negative(bits: Order) -> Order:
    flipped: Order = bits ^ ((bits >> 63) & _ALL_BUT_THE_SIGN)
    return flipped
