"""A table of several models' metrics, with intervals and paired tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from dml_eval_rs.metrics.intervals import Comparison, Interval
from dml_eval_rs.metrics.names import title_of
from dml_eval_rs.metrics.tables import Measured, Table, Tabular

_NUMBERS = "value", "low", "high", "difference", "difference_low", "difference_high", "p", "p_holm"


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric of one model. Metrics of clusters have no interval, and the first model has no comparison."""

    value: float
    interval: Interval | None = None
    comparison: Comparison | None = None  # with the first model
    adjusted_p: float | None = None  # by Holm's correction over all comparisons of the table


@dataclass(frozen=True)
class ComparisonTable(Tabular):
    """The metrics of several models: ``table["theirs", "map@r"]`` is an `Entry`."""

    models: list[str]
    metrics: list[str]
    entries: Mapping[tuple[str, str], Entry]

    def __getitem__(self, place: tuple[str, str]) -> Entry:
        return self.entries[place]

    def to_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return metric → model → its numbers by name, ready for JSON."""
        found: dict[str, dict[str, dict[str, float]]] = {metric: {} for metric in self.metrics}
        for metric, model, numbers in self._numbers():
            found[metric][model] = {name: of for name, of in zip(_NUMBERS, numbers) if of is not None}
        return found

    def table(self) -> Table:
        """Return a row for each metric and model: value, interval, difference and p-value."""
        first = self.models[0]
        header = "metric", "model", "value", "interval", f"minus {first}", "difference interval", "p (Holm)"
        rows = []
        for metric, model in itertools.product(self.metrics, self.models):
            entry = self[model, metric]
            row = [title_of(metric), model, f"{entry.value:.4f}", _ends(entry.interval), "", "", ""]
            if entry.comparison is not None:
                paired = entry.comparison
                row[4:] = f"{paired.difference:+.4f}", _ends(paired.interval), f"{entry.adjusted_p:.4f}"
            rows.append(row)
        return Table(rows, header)

    def precise(self) -> Table:
        """Return all digits, and the uncorrected p-values."""
        rows = [
            (metric, model, *("" if of is None else repr(of) for of in numbers))
            for metric, model, numbers in self._numbers()
        ]
        return Table(rows, ("metric", "model", *_NUMBERS))

    def _numbers(self) -> Iterator[tuple[str, str, list[float | None]]]:
        """Yield each metric and model with its `_NUMBERS`."""
        for metric, model in itertools.product(self.metrics, self.models):
            entry, paired = self[model, metric], self[model, metric].comparison
            numbers = [entry.value, *_both_ends(entry.interval), None, None, None, None, entry.adjusted_p]
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
    """Compare several models on the same queries or pairs: values, intervals, and paired tests against the first model.

    The p-values are those of ``result.compare``, corrected for the number of comparisons in the table (Holm 1979): with
    m p-values in ascending order, p'_i = max over j ≤ i of min(1, (m − j + 1) p_j).

    Args:
        results: model → its result of `evaluate` or `verify`. All results are of the same queries in the same order.
        metrics: names; None for all that every model measured, but precision@1 beside recall@1, which it equals.
        level, seed, by: as in `Evaluation.compare`.

    Raises:
        KeyError: if a model lacks a metric.
        ValueError: if there are fewer than two models, or as ``result.compare``.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import compare, evaluate
        >>> rng, labels = np.random.default_rng(0), np.arange(200) // 4
        >>> centres = rng.normal(size=(50, 8))[labels]
        >>> ours, theirs = (centres + noise * rng.normal(size=(200, 8)) for noise in (0.5, 0.9))
        >>> table = compare({"ours": evaluate(ours, labels), "theirs": evaluate(theirs, labels)}, "map@r")
        >>> table["theirs", "map@r"].adjusted_p < 0.01
        True
    """
    if not isinstance(results, Mapping) or len(results) < 2:
        raise ValueError("results has fewer than two models; expected such as {'ours': a, 'theirs': b}")
    models: Mapping[str, Any] = results
    (first, base), *others = models.items()
    if metrics is None:
        names = [name for name in base if all(name in set(other) for _, other in others)]
        if "recall@1" in names and "precision@1" in names:  # they are equal, and one test is enough
            names.remove("precision@1")
    else:
        names = [metrics] if isinstance(metrics, str) else list(metrics)
    options = {} if by is None else {"by": by}
    entries: dict[tuple[str, str], Entry] = {}
    for name, (model, result) in itertools.product(names, models.items()):
        paired = None
        try:
            interval = result.confidence_interval(name, level, seed, **options)
        except KeyError:  # a metric of clusters, which can't be resampled
            interval = None
        if interval is not None and model != first:
            paired = result.compare(base, name, level=level, seed=seed, **options)
        entries[model, name] = Entry(result[name], interval, paired)
    p_values = {place: entry.comparison.p_value for place, entry in entries.items() if entry.comparison}
    for place, p in zip(p_values, holm(list(p_values.values()))):
        entries[place] = replace(entries[place], adjusted_p=p)
    return ComparisonTable(list(results), names, entries)


def holm(p_values: list[float]) -> list[float]:
    """Correct p-values for their number by Holm's step-down method, in the order given."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.low:.4f} to {interval.high:.4f}"


def _both_ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)
