"""Two evaluations of the same queries: what differs, and whether by more than chance.

Shapes: `Q` queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from dml_core import ComparableEvaluation, Evaluation
from dml_train.report.finished import Metric


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of two evaluations, the second less the first.

    Args:
        name: the metric's.
        first, second: the two figures.
        difference: of their means over the queries.
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


def differences(
    first: Evaluation, second: Evaluation, metrics: list[Metric], others: list[Metric]
) -> list[Difference]:
    """The paired test for every metric that both have for each query.

    Empty if `second` is no `ComparableEvaluation`.

    Args:
        first, second: of the same queries in the same order.
        metrics, others: their figures.
    """
    if not isinstance(second, ComparableEvaluation):
        return []
    values = {metric.key: metric.value for metric in others}
    found = []
    for metric in metrics:
        if metric.key not in values or not (metric.key in first.per_query and metric.key in second.per_query):
            continue
        test = second.compare(first, metric.key)
        found.append(
            Difference(
                metric.name,
                metric.value,
                values[metric.key],
                test.difference,
                test.interval.low,
                test.interval.high,
                test.p_value,
            )
        )
    return found
