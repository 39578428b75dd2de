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


def interval_of(
    values: npt.NDArray[np.float64],
    measured: npt.NDArray[np.bool_],
    by: npt.ArrayLike | None,
    level: float,
    seed: int,
) -> Interval:
    """Return the percentile interval of the mean of the measured values, over resamples of them or of classes.

    Raises:
        ValueError: if `level` or `seed` is out of range, or as `class_totals`.
    """
    check_level(level)
    seed = arguments.seed(seed)
    if by is None:
        sums, counts = values[measured], np.ones(int(measured.sum()), np.int64)
    else:
        sums, counts = class_totals(values, by, measured)
    return percentiles(resampled_means(sums, counts, RESAMPLES, seed), level)


def percentiles(resampled: npt.NDArray[np.float64], level: float) -> Interval:
    """Return the interval between the percentiles (1 ± level)/2 of resampled values (R,)."""
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level)


def check_level(level: float) -> None:
    """Check that a confidence level lies between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a number above 0 and below 1, e.g. 0.95")


def p_value(extreme: int) -> float:
    """Return (1 + extreme) / (1 + permutations) (Phipson and Smyth 2010)."""
    return (1 + extreme) / (1 + PERMUTATIONS)


def class_totals(
    values: npt.NDArray[np.float64], by: npt.ArrayLike, measured: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sum of the measured values of each class, and their number, both (C,).

    Args:
        values: (Q,) values.
        by: (Q,) labels of the classes.
        measured: (Q,) whether a query counts.

    Raises:
        TypeError: if `by` has the wrong kind of dtype.
        ValueError: if `by` doesn't have one label a query, or the measured queries are all of one class.
    """
    labels_Q = arguments.partition(by, "by")
    if len(labels_Q) != len(values):
        raise ValueError(f"by has shape {labels_Q.shape}; expected ({len(values)},), one label per query")
    _, class_q = np.unique(labels_Q[measured], return_inverse=True)
    count_C = np.bincount(class_q.reshape(-1))
    if len(count_C) < 2:
        raise ValueError(
            f"by has {len(count_C)} class among the queries with a match; expected at least 2 to resample"
        )
    sum_C = np.bincount(class_q.reshape(-1), weights=values[measured]).astype(np.float64)
    return sum_C, count_C.astype(np.int64)


def resampled_means(
    sum_C: npt.NDArray[np.float64], count_C: npt.NDArray[np.int64], repetitions: int, seed: int
) -> npt.NDArray[np.float64]:
    """Return (R,) means over the queries of C classes drawn with replacement."""
    rng = np.random.default_rng(seed)
    drawn = (
        rng.integers(0, len(sum_C), size=(rows, len(sum_C))) for rows in _batches(repetitions, len(sum_C))
    )
    return np.concatenate([sum_C[class_RC].sum(axis=1) / count_C[class_RC].sum(axis=1) for class_RC in drawn])


def count_extreme(
    terms: npt.NDArray[np.float64], n_queries: int, observed: float, repetitions: int, seed: int
) -> int:
    """Count the repetitions in which the mean of randomly signed terms is at least as far from 0 as the observed one.

    Args:
        terms: differences of queries, or sums of differences of classes.
        n_queries: the number that the sum of the terms is divided by.
        observed: the mean of the unchanged terms.
        repetitions: R.
        seed: seed of the signs.
    """
    # Sums of the same numbers in another order differ by rounding, and must still count as equal.
    threshold = abs(observed) * (1 - 1e-12)
    rng = np.random.default_rng(seed)
    changed = terms[terms != 0]
    extreme = 0
    for rows in _batches(repetitions, len(changed)):
        signs = rng.integers(0, 2, size=(rows, len(changed)), dtype=np.int8) * 2 - 1
        extreme += int(np.count_nonzero(np.abs((signs @ changed) / n_queries) >= threshold))
    return extreme


def _batches(repetitions: int, numbers: int) -> Iterator[int]:
    batch = max(1, _NUMBERS_AT_A_TIME // max(1, numbers))
    return (min(batch, repetitions - start) for start in range(0, repetitions, batch))
