"""A table of several models' metrics, with intervals and paired tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy.typing as npt

from dml_eval_rs.metrics.intervals import Comparison, Interval
from dml_eval_rs.metrics.names import title_of
from dml_eval_rs.metrics.tables import Table, Tabular


class Comparable(Protocol):
    """A result of `evaluate` or of `verify`: a mapping with intervals and paired tests."""

    def __getitem__(self, name: str, /) -> float: ...
    def __iter__(self) -> Iterator[str]: ...

    @property
    def confidence_interval(self) -> Callable[..., Interval]:
        """The method of this name."""
        ...

    @property
    def compare(self) -> Callable[..., Comparison]:
        """The method of this name."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric of one model.

    Attributes:
        value: the metric.
        interval: its confidence interval; None for metrics of clusters, which have no values per query.
        comparison: of this model with the first one; None for the first.
        adjusted_p: the p-value by Holm's correction over all comparisons of the table.
    """

    value: float
    interval: Interval | None
    comparison: Comparison | None
    adjusted_p: float | None


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
        names, table = self.precise().header[2:], self.precise().rows
        numbers = [{name: float(cell) for name, cell in zip(names, row[2:]) if cell} for row in table]
        by_place = {(row[0], row[1]): of for row, of in zip(table, numbers)}
        return {metric: {model: by_place[metric, model] for model in self.models} for metric in self.metrics}

    def table(self) -> Table:
        """Return a row for each metric and model: value, interval, difference and p-value."""
        header = (
            "metric",
            "model",
            "value",
            "interval",
            f"minus {self.models[0]}",
            "difference interval",
            "p (Holm)",
        )
        rows = []
        for metric in self.metrics:
            for model in self.models:
                entry, paired = self[model, metric], self[model, metric].comparison
                rows.append(
                    (
                        title_of(metric), model, f"{entry.value:.4f}", _ends(entry.interval),
                        f"{paired.difference:+.4f}" if paired else "", _ends(paired.interval if paired else None),
                        "" if entry.adjusted_p is None else f"{entry.adjusted_p:.4f}",
                    )
                )  # fmt: skip
        return Table(rows, header)

    def precise(self) -> Table:
        """Return all digits, and the uncorrected p-values."""
        header = (
            "metric", "model", "value", "low", "high", "difference", "difference_low", "difference_high", "p", "p_holm",
        )  # fmt: skip
        rows = []
        for metric in self.metrics:
            for model in self.models:
                entry, paired = self[model, metric], self[model, metric].comparison
                numbers = [
                    entry.value,
                    *_both_ends(entry.interval),
                    paired.difference if paired else None,
                    *_both_ends(paired.interval if paired else None),
                    paired.p_value if paired else None,
                    entry.adjusted_p,
                ]
                rows.append((metric, model, *("" if number is None else repr(number) for number in numbers)))
        return Table(rows, header)


def compare(
    results: Mapping[str, Comparable],
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
        level: the confidence level of the intervals.
        seed: seed of the resamples and permutations.
        by: (n_queries,) classes of queries that are resampled as a whole, see `Evaluation.confidence_interval`.

    Returns:
        The table, which prints as text and converts to Markdown, LaTeX and CSV.

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
    (first, base), *others = results.items()
    if metrics is None:
        names = [name for name in base if all(name in set(other) for _, other in others)]
        if "recall@1" in names and "precision@1" in names:  # they are equal, and one test is enough
            names.remove("precision@1")
    else:
        names = [metrics] if isinstance(metrics, str) else list(metrics)
    options = {} if by is None else {"by": by}
    entries: dict[tuple[str, str], Entry] = {}
    pairs: list[tuple[tuple[str, str], Comparison]] = []
    for name in names:
        for model, result in results.items():
            try:
                interval = result.confidence_interval(name, level, seed, **options)
            except KeyError:  # a metric of clusters, which can't be resampled
                entries[model, name] = Entry(result[name], None, None, None)
                continue
            entries[model, name] = Entry(result[name], interval, None, None)
            if model != first:
                pairs.append(((model, name), result.compare(base, name, level=level, seed=seed, **options)))
    adjusted = holm([comparison.p_value for _, comparison in pairs])
    for (place, comparison), p in zip(pairs, adjusted):
        entries[place] = Entry(entries[place].value, entries[place].interval, comparison, p)
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
