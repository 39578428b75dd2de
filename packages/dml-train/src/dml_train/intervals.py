"""Means of repeated runs, and how far they can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# 97.5 % quantiles of Student's distribution for 1, 2, … degrees of freedom; beyond, the normal's is within 2 %.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Interval(NamedTuple):
    """A mean, and half the width of its 95 % interval; None if a single value has none."""

    mean: float
    half_width: float | None


def of_runs(values: Sequence[float]) -> Interval:
    """The mean of independent runs, ``x̄ ± t · s / √n`` with Student's t for n − 1 degrees of freedom.

    Source: Student 1908, The Probable Error of a Mean.

    Args:
        values: one a run, at least one, finite.

    Returns:
        The interval; of a single run the value alone.

    Raises:
        ValueError: if there is no value.
    """
    if not values:
        raise ValueError("values is empty; expected one for each run, at least one")
    mean = statistics.fmean(values)
    count = len(values)
    if count == 1:
        return Interval(mean, None)
    quantile = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else statistics.NormalDist().inv_cdf(0.975)
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(count))


def of_share(share: float, count: int) -> Interval:
    """A share of queries of one run, ``p ± 1.96 · √(p(1 − p) / n)``: what other queries would change, not other runs.

    Args:
        share: in [0, 1].
        count: n, of queries, at least 1. Those of one class aren't independent: the interval is rather too narrow.
    """
    return Interval(share, statistics.NormalDist().inv_cdf(0.975) * math.sqrt(share * (1 - share) / count))
