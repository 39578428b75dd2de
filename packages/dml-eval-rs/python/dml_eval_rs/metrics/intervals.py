"""Confidence intervals of means, and paired tests of their differences.

Shapes: `Q` queries, `C` classes of queries, `R` repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments

RESAMPLES = 2000
PERMUTATIONS = 10_000

_NUMBERS_AT_A_TIME = 4_000_000
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a mean."""

    low: float
    high: float
    level: float

    def __str__(self) -> str:
        return f"{self.low:.4f} to {self.high:.4f} ({self.level * 100:.4g} %)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two models on the same queries.

    Attributes:
        name: the metric.
        difference: the first model's value minus the second's.
        p_value: the two-sided p-value of the paired permutation test.
        interval: the bootstrap interval of the difference.
        n_queries: number of queries with a match, over which both means are taken; of a verification, of identities.
        unit: ``"queries"`` or ``"identities"``.
    """

    name: str
    difference: float
    p_value: float
    interval: Interval
    n_queries: int
    unit: str = "queries"

    def __str__(self) -> str:
        return (
            f"{self.name}: difference {self.difference:+.4f}, {self.interval}, p = {self.p_value:.4f}, "
            f"{self.n_queries:,} {self.unit}"
        )


def check_resampling(level: float, seed: int) -> int:
    """Check that a confidence level lies between 0 and 1, and return the checked seed."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a number above 0 and below 1, e.g. 0.95")
    return arguments.seed(seed)


def interval_of(values_Q: _Floats, by: npt.ArrayLike | None, level: float, seed: int) -> Interval:
    """Return the percentile interval of the mean, but NaN, over resamples of queries, or of their classes `by`."""
    rng = np.random.default_rng(check_resampling(level, seed))
    sum_C, count_C = _totals(values_Q, by)
    C = len(sum_C)
    drawn = (rng.integers(0, C, size=(rows, C)) for rows in batches(RESAMPLES, C))
    means = [sum_C[class_RC].sum(axis=1) / count_C[class_RC].sum(axis=1) for class_RC in drawn]
    return percentiles(np.concatenate(means), level)


def percentiles(resampled: _Floats, level: float) -> Interval:
    """Return the interval between the percentiles (1 ± level)/2 of resampled values (R,)."""
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level)


def p_value(extreme: int) -> float:
    """Return (1 + extreme) / (1 + permutations) (Phipson and Smyth 2010)."""
    return (1 + extreme) / (1 + PERMUTATIONS)


def compare_differences(
    name: str,
    difference_Q: _Floats,
    observed: float,
    by: npt.ArrayLike | None,
    level: float,
    seed: int,
    unit: str = "queries",
) -> Comparison:
    """Test a mean difference, but NaN, against random signs of queries, or of their classes, and add its interval."""
    interval = interval_of(difference_Q, by, level, seed)
    sum_C, count_C = _totals(difference_Q, by)
    n = int(count_C.sum())
    # Sums of the same numbers in another order differ by rounding, and must still count as equal.
    threshold = abs(observed) * (1 - 1e-12)
    rng = np.random.default_rng(arguments.seed(seed))
    changed = sum_C[sum_C != 0]
    extreme = 0
    for rows in batches(PERMUTATIONS, len(changed)):
        signs = rng.integers(0, 2, size=(rows, len(changed)), dtype=np.int8) * 2 - 1
        extreme += int(np.count_nonzero(np.abs((signs @ changed) / n) >= threshold))
    return Comparison(name, observed, p_value(extreme), interval, n, unit)


def _totals(values_Q: _Floats, by: npt.ArrayLike | None) -> tuple[_Floats, npt.NDArray[np.int64]]:
    """Return the sum of each class's values but NaN, and their number, both (C,); without classes, each value's."""
    counts_Q = ~np.isnan(values_Q)
    if by is None:
        return values_Q[counts_Q], np.ones(np.count_nonzero(counts_Q), np.int64)
    labels_Q = arguments.partition(by, "by", len(values_Q), "query")
    class_q = np.unique(labels_Q[counts_Q], return_inverse=True)[1].reshape(-1)
    count_C = np.bincount(class_q)
    if len(count_C) < 2:
        raise ValueError(f"by has {len(count_C)} class among the queries with a match; expected at least 2")
    sum_C = np.bincount(class_q, weights=values_Q[counts_Q]).astype(np.float64)
    return sum_C, count_C


def batches(repetitions: int, numbers: int) -> Iterator[int]:
    """Yield how many repetitions to draw at a time, each of so many numbers."""
    batch = max(1, _NUMBERS_AT_A_TIME // max(1, numbers))
    return (min(batch, repetitions - start) for start in range(0, repetitions, batch))
