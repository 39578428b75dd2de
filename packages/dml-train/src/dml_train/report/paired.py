"""Two evaluations of the same queries: how they differ, and whether by more than chance."""

from __future__ import annotations

from dataclasses import dataclass

from dml_core import ComparableEvaluation, Evaluation
from dml_train.measure.listing import Metric


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of two evaluations, the second minus the first.

    Args:
        name, title: the metric's name, and that for readers.
        first, second: its values.
        difference: of its means over the queries.
        low, high: the bounds of the difference's bootstrap interval.
        p_value: of the paired permutation test, two-sided.
    """

    name: str
    title: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float


def compare_metrics(
    first: Evaluation, second: Evaluation, first_metrics: list[Metric], second_metrics: list[Metric]
) -> list[MetricDifference]:
    """Test every metric for which both evaluations have per-query values.

    Empty if `second` is no `ComparableEvaluation`.

    Args:
        first, second: evaluations of the same queries in the same order.
        first_metrics, second_metrics: their metrics.
    """
    if not isinstance(second, ComparableEvaluation):
        return []
    values = {metric.name: metric.value for metric in second_metrics}
    differences = []
    for metric in first_metrics:
        if not all(metric.name in names for names in (values, first.per_query, second.per_query)):
            continue
        test = second.compare(first, metric.name)
        differences.append(
            MetricDifference(
                metric.name,
                metric.title,
                metric.value,
                values[metric.name],
                test.difference,
                test.interval.low,
                test.interval.high,
                test.p_value,
            )
        )
    return differences
