"""Means of repeated runs, with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_NORMAL = statistics.NormalDist().inv_cdf(0.975)
# 97.5 % quantiles of Student's distribution for 1, 2, … degrees of freedom; for more, the normal's
# is within 2 %. Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Interval(NamedTuple):
    """A mean, and half the width of the 95 % interval; None for a single value."""

    mean: float
    half_width: float | None

    def percent(self, decimals: int) -> str:
        """Format as a percentage, for example ``76.4 ± 1.2``."""
        mean = f"{100 * self.mean:.{decimals}f}"
        return mean if self.half_width is None else f"{mean} ± {100 * self.half_width:.{decimals}f}"


class Spread(NamedTuple):
    """The standard deviation of runs with equal settings, and the degrees of freedom, at least
    1.
    """

    deviation: float
    degrees: int

    def half_width(self, runs: int) -> float:
        """Return half the width of the 95 % interval for the mean of n runs, ``t · s / √n``."""
        student = _STUDENT[self.degrees - 1] if self.degrees <= len(_STUDENT) else _NORMAL
        return student * self.deviation / math.sqrt(runs)

    def half_width_of_difference(self, runs: int) -> float:
        """Return half the width of the 95 % interval for the difference between two means,
        ``t · s · √(2 / n)``.
        """
        return math.sqrt(2) * self.half_width(runs)


def pool_spread(settings: Sequence[Sequence[float]]) -> Spread | None:
    """Estimate the spread of runs, which must be equal for all settings; None if all settings have
    a single run.

    ``s² = Σ_j Σ_i (x_ij − x̄_j)² / Σ_j (n_j − 1)`` for the values x_ij of setting j. Use this when
    settings have only two or three runs, too few to estimate a spread from.
    """
    settings = [values for values in settings if values]
    degrees = sum(len(values) - 1 for values in settings)
    if degrees == 0:
        return None
    means = map(statistics.fmean, settings)
    squares = [(value - mean) ** 2 for values, mean in zip(settings, means) for value in values]
    return Spread(math.sqrt(math.fsum(squares) / degrees), degrees)


def average_runs(values: Sequence[float]) -> Interval:
    """Average n independent runs, with an interval if n exceeds 1; raise ValueError if runs aren't
    given.

    ``x̄ ± t · s / √n``, with t from Student's distribution with n − 1 degrees of freedom.

    Source: Student 1908, The Probable Error of a Mean.
    """
    if not values:
        raise ValueError("values is empty; expected a value for one or more runs")
    spread = pool_spread([values])
    return Interval(
        statistics.fmean(values), None if spread is None else spread.half_width(len(values))
    )


def share_interval(share: float, count: int) -> Interval:
    """Return the interval of a share p of n = `count` queries in a run,
    ``p ± 1.96 · √(p(1 − p) / n)``.

    Note that the interval describes the random choice of queries, not of runs, and is too narrow,
    since queries of a class aren't independent.
    """
    return Interval(share, _NORMAL * math.sqrt(share * (1 - share) / count))
