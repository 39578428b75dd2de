"""The metrics of an evaluation that readers see, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dml_core import Evaluation, IntervalEvaluation, metric_family, metric_title
from dml_train.measure.names import repeats

LEVEL = 0.95  # of all intervals


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of an evaluation.

    Args:
        name: its name, ``"recall@1"``.
        value: its value.
        low, high: the bounds of its bootstrap interval, if it has one.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def title(self) -> str:
        """The name for readers, ``"Recall@1"``."""
        return metric_title(self.name)


def list_metrics(result: Mapping[str, Any], evaluation: Evaluation | None = None) -> list[Metric]:
    """List the metrics, in the order in which they were asked.

    Omitted are metrics of a K beyond the gallery beside those of smaller ones, and precision@1 beside recall@1.

    Args:
        result: ``to_dict()`` of an evaluation; its floats are metrics, and its integers counts.
        evaluation: gives the intervals, if it is an `IntervalEvaluation`.
    """
    items = result.get("n_gallery", math.inf)
    values = {name: value for name, value in result.items() if isinstance(value, float)}
    fitting = {metric_family(name) for name in values if _k_of(name) <= items}
    metrics = []
    for name, value in values.items():
        if repeats(name, values) or (_k_of(name) > items and metric_family(name) in fitting):
            continue
        if isinstance(evaluation, IntervalEvaluation) and name in evaluation.per_query:
            bounds = evaluation.confidence_interval(name, level=LEVEL)
            metrics.append(Metric(name, value, bounds.low, bounds.high))
        else:
            metrics.append(Metric(name, value))
    return metrics


def _k_of(name: str) -> int:
    """Return K of ``"recall@K"``; 0 of any other metric."""
    k = name.partition("@")[2]
    return int(k) if k.isdecimal() else 0
