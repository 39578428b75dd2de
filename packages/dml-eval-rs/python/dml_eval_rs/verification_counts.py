"""Metrics of a verification from exact counts of its pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dml_eval_rs.score_order import next_above
from dml_eval_rs.verification_rates import Counts, Slots, accepted_at_most, curve_of, divide, equal_error_rate
from dml_eval_rs.verification_result import Verification

# A score, the negatives above it and at least there, and the positives above it and at least there.
Point = tuple[float, int, int, int, int]


def measure_crossings(
    points: Sequence[Point],
    slots: Slots | None,
    far: list[float],
    wanted: set[str],
    n_positive: int,
    n_negative: int,
) -> Verification:
    """Measure by the first negative that each FAR refuses, and then by the score where errors are equal."""
    auc, roc = (None, None) if slots is None else curve_of(slots, n_negative, n_positive)
    at_far = points[: len(far)] if "tar" in wanted else []
    eer = eer_threshold = None
    if "eer" in wanted:
        eer_threshold = points[-1][0]
        eer = equal_error_rate(points[-1][1:], n_negative, n_positive)
    return Verification(
        tar={share: divide(point[3], n_positive) for share, point in zip(far, at_far)},
        threshold={share: next_above(point[0]) for share, point in zip(far, at_far)},
        eer=eer,
        eer_threshold=eer_threshold,
        auc=auc,
        n_positive=n_positive,
        n_negative=n_negative,
        roc=roc,
    )


def measure_distances(
    positives: Counts, negatives: Counts, far: list[float], wanted: set[str]
) -> Verification:
    """Measure pairs of codes by their numbers at each distance from 0 on."""
    within = [
        [0, *np.cumsum(counts).tolist()] for counts in (negatives, positives)
    ]  # closer than each distance
    n_negative, n_positive = within[0][-1], within[1][-1]

    def point(reached: Sequence[bool]) -> Point:
        distance = reached.index(True)
        closer = [of[distance] for of in within]
        at_most = [of[distance + 1] for of in within]
        # As an integer 0 has no sign; 0.0 - 0.0 is -0.0 where the caller rounds down.
        return float(-distance), closer[0], at_most[0], closer[1], at_most[1]

    points = []
    if "tar" in wanted:
        refused = [accepted_at_most(share, n_negative) for share in far]
        points += [point([of > limit for of in within[0][1:]]) for limit in refused]
    if "eer" in wanted:
        both = zip(within[0][1:], within[1][1:], strict=True)
        points.append(point([n_positive * n + n_negative * p >= n_positive * n_negative for n, p in both]))
    slots = _slots(positives, negatives) if "auc" in wanted else None
    return measure_crossings(points, slots, far, wanted, n_positive, n_negative)


def _slots(positives: Counts, negatives: Counts) -> Slots:
    """Return the negatives between the positives' scores, which descend with the distance."""
    distances = np.flatnonzero(positives)[::-1]
    edges = np.stack([distances + 1, distances], axis=1).reshape(-1)  # from the largest distance on
    beyond = np.concatenate([[0], np.cumsum(negatives[::-1])]).astype(np.uint64)[
        ::-1
    ]  # at each distance or more
    slots = np.diff(beyond[edges], prepend=np.uint64(0), append=beyond[0])
    return (-distances).astype(np.float64), positives[distances], slots
