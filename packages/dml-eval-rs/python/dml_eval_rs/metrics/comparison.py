"""Confidence intervals, paired tests between two models, and a table to compare models.

Shapes: `Q` queries, `C` classes of queries, `R` repetitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.metrics.names import title_of
from dml_eval_rs.metrics.tables import Measured, Table, Tabular

RESAMPLES = 2000
PERMUTATIONS = 10_000

_NUMBERS_AT_A_TIME = 4_000_000
_NUMBERS = "value", "low", "high", "difference", "difference_low", "difference_high", "p", "p_holm"
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval for a mean."""

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
        interval: the bootstrap interval for the difference.
        n_queries: the number of queries, identities or folds used in the means, see `unit`.
        unit: ``"queries"`` (those that have a match), ``"identities"`` or ``"folds"``.
    """

    name: str
    difference: float
    p_value: float
    interval: Interval
    n_queries: int
    unit: str = "queries"

    def __str__(self) -> str:
        return (
            f"{self.name}: difference {self.difference:+.4f}, {self.interval}, p = "
            f"{self.p_value:.4f}, {self.n_queries:,} {self.unit}"
        )


def check_resampling(level: float, seed: int) -> int:
    """Check that a confidence level lies between 0 and 1; return the checked seed."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a number between 0 and 1, for example 0.95")
    return arguments.seed(seed)


def interval_of(values_Q: _Floats, by: npt.ArrayLike | None, level: float, seed: int) -> Interval:
    """Return the percentile interval for the mean, excluding NaN, by resampling queries, or classes
    if given.
    """
    rng = np.random.default_rng(check_resampling(level, seed))
    sum_C, count_C = _totals(values_Q, by)
    C = len(sum_C)
    drawn = (rng.integers(0, C, size=(rows, C)) for rows in batches(RESAMPLES, C))
    means = [sum_C[class_RC].sum(axis=1) / count_C[class_RC].sum(axis=1) for class_RC in drawn]
    return percentiles(np.concatenate(means), level)


def percentiles(resampled: _Floats, level: float) -> Interval:
    """Return the interval between percentiles (1 ± level)/2 of the resampled values (R,)."""
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
    """Test a mean difference, excluding NaN, by random signs per query, or per class; also return
    an interval.
    """
    interval = interval_of(difference_Q, by, level, seed)
    sum_C, count_C = _totals(difference_Q, by)
    n = int(count_C.sum())
    # Sums of numbers in a different order differ by rounding, but should be equal.
    threshold = abs(observed) * (1 - 1e-12)
    rng = np.random.default_rng(arguments.seed(seed))
    changed = sum_C[sum_C != 0]
    extreme = 0
    for rows in batches(PERMUTATIONS, len(changed)):
        signs = rng.integers(0, 2, size=(rows, len(changed)), dtype=np.int8) * 2 - 1
        extreme += int(np.count_nonzero(np.abs((signs @ changed) / n) >= threshold))
    return Comparison(name, observed, p_value(extreme), interval, n, unit)


def _totals(values_Q: _Floats, by: npt.ArrayLike | None) -> tuple[_Floats, npt.NDArray[np.int64]]:
    """Return the sum and number of values per class, excluding NaN, both (C,); by default, per
    value.
    """
    counts_Q = ~np.isnan(values_Q)
    if by is None:
        return values_Q[counts_Q], np.ones(np.count_nonzero(counts_Q), np.int64)
    labels_Q = arguments.partition(by, "by", len(values_Q), "query")
    class_q = np.unique(labels_Q[counts_Q], return_inverse=True)[1].reshape(-1)
    count_C = np.bincount(class_q)
    if len(count_C) < 2:
        raise ValueError(
            f"by has {len(count_C)} class, counting only matched queries; expected at least 2"
        )
    sum_C = np.bincount(class_q, weights=values_Q[counts_Q]).astype(np.float64)
    return sum_C, count_C


def batches(repetitions: int, numbers: int) -> Iterator[int]:
    """Yield the number of repetitions to draw per batch, to limit memory, if a repetition draws
    `numbers` numbers.
    """
    batch = max(1, _NUMBERS_AT_A_TIME // max(1, numbers))
    return (min(batch, repetitions - start) for start in range(0, repetitions, batch))


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric of one model. Clustering metrics do not have an interval; the first model is not
    compared.
    """

    value: float
    interval: Interval | None = None
    comparison: Comparison | None = None  # with the first model
    adjusted_p: float | None = None  # corrected for all comparisons in the table (Holm)


@dataclass(frozen=True)
class ComparisonTable(Tabular):
    """The metrics per model: for example, ``table["theirs", "map@r"]`` is an `Entry`."""

    models: list[str]
    metrics: list[str]
    entries: Mapping[tuple[str, str], Entry]

    def __getitem__(self, place: tuple[str, str]) -> Entry:
        return self.entries[place]

    def to_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return metric → model → numbers by name, to be saved as JSON."""
        found: dict[str, dict[str, dict[str, float]]] = {metric: {} for metric in self.metrics}
        for metric, model, numbers in self._numbers():
            found[metric][model] = {
                name: of for name, of in zip(_NUMBERS, numbers) if of is not None
            }
        return found

    def table(self) -> Table:
        """Return a row per metric and model: value, interval, difference and p-value."""
        first = self.models[0]
        header = (
            "metric",
            "model",
            "value",
            "interval",
            f"minus {first}",
            "difference interval",
            "p (Holm)",
        )
        rows = []
        for metric, model in itertools.product(self.metrics, self.models):
            entry = self[model, metric]
            row = [title_of(metric), model, f"{entry.value:.4f}", _ends(entry.interval), "", "", ""]
            if entry.comparison is not None:
                paired = entry.comparison
                row[4:] = (
                    f"{paired.difference:+.4f}",
                    _ends(paired.interval),
                    f"{entry.adjusted_p:.4f}",
                )
            rows.append(row)
        return Table(rows, header)

    def precise(self) -> Table:
        """Return all digits, with the uncorrected p-values."""
        rows = [
            (metric, model, *("" if of is None else repr(of) for of in numbers))
            for metric, model, numbers in self._numbers()
        ]
        return Table(rows, ("metric", "model", *_NUMBERS))

    def _numbers(self) -> Iterator[tuple[str, str, list[float | None]]]:
        """Yield the `_NUMBERS` per metric and model."""
        for metric, model in itertools.product(self.metrics, self.models):
            entry, paired = self[model, metric], self[model, metric].comparison
            numbers = [
                entry.value,
                *_both_ends(entry.interval),
                None,
                None,
                None,
                None,
                entry.adjusted_p,
            ]
            if paired is not None:
                numbers[3:7] = paired.difference, *_both_ends(paired.interval), paired.p_value
            yield metric, model, numbers


def compare(
    results: Mapping[str, Measured],
    metrics: str | Iterable[str] | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
    by: npt.ArrayLike | None = None,
) -> ComparisonTable:
    """Compare models on the same queries or pairs: values, intervals, and paired tests against the
    first model.

    The p-values of ``result.compare`` are corrected for the number of comparisons in the table
    (Holm 1979): if m p-values are sorted in ascending order, p'_i = max over j ≤ i of min(1, (m −
    j + 1) p_j).

    Args:
        results: model → result of `evaluate` or `verify`. All must be measured on the same queries
            in the same order.
        metrics: names. By default, all that every result contains, except precision@1 when the
            equal recall@1 is used.
        level, seed, by: see `Evaluation.compare`.

    Raises:
        KeyError: if a model lacks a metric.
        ValueError: as ``result.compare``, or if fewer than two models are given.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import compare, evaluate
        >>> rng, labels = np.random.default_rng(0), np.arange(200) // 4
        >>> centres = rng.normal(size=(50, 8))[labels]
        >>> ours, theirs = (centres + noise * rng.normal(size=(200, 8)) for noise in (0.5, 0.9))
        >>> results = {"ours": evaluate(ours, labels), "theirs": evaluate(theirs, labels)}
        >>> table = compare(results, "map@r")
        >>> table["theirs", "map@r"].adjusted_p < 0.01
        True
    """
    if not isinstance(results, Mapping) or len(results) < 2:
        raise ValueError(
            "results has fewer than two models; expected, for example, {'ours': a, 'theirs': b}"
        )
    models: Mapping[str, Any] = results
    (first, base), *others = models.items()
    if metrics is None:
        names = [name for name in base if all(name in set(other) for _, other in others)]
        if (
            "recall@1" in names and "precision@1" in names
        ):  # these are equal, so only recall@1 is tested
            names.remove("precision@1")
    else:
        names = [metrics] if isinstance(metrics, str) else list(metrics)
    options = {} if by is None else {"by": by}
    entries: dict[tuple[str, str], Entry] = {}
    for name, (model, result) in itertools.product(names, models.items()):
        paired = None
        try:
            interval = result.confidence_interval(name, level, seed, **options)
        except KeyError:  # clustering metrics can't be resampled
            interval = None
        if interval is not None and model != first:
            paired = result.compare(base, name, level=level, seed=seed, **options)
        entries[model, name] = Entry(result[name], interval, paired)
    p_values = {
        place: entry.comparison.p_value for place, entry in entries.items() if entry.comparison
    }
    for place, p in zip(p_values, holm(list(p_values.values()))):
        entries[place] = replace(entries[place], adjusted_p=p)
    return ComparisonTable(list(results), names, entries)


def holm(p_values: list[float]) -> list[float]:
    """Correct p-values by Holm's step-down method, in the given order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.low:.4f} to {interval.high:.4f}"


def _both_ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)
