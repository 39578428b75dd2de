"""Two evaluations of the same queries: how they differ, and whether by more than chance."""

from __future__ import annotations

from dataclasses import dataclass

from dml_core import ComparableEvaluation, Evaluation
from dml_train.measure.listing import Metric


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of two evaluations, the second minus the first.

    Args:
        name: the metric's name.
        first, second: its values.
        difference: of its means over the queries.
        low, high: the bounds of the difference's bootstrap interval.
        p_value: of the paired permutation test, two-sided.
    """

    name: str
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
    values = {metric.key: metric.value for metric in second_metrics}
    differences = []
    for metric in first_metrics:
        if metric.key not in values or not (metric.key in first.per_query and metric.key in second.per_query):
            continue
        test = second.compare(first, metric.key)
        differences.append(
            MetricDifference(
                metric.name,
                metric.value,
                values[metric.key],
                test.difference,
                test.interval.low,
                test.interval.high,
                test.p_value,
            )
        )
    return differences
