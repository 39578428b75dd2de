"""The metrics of an evaluation that readers see, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dml_core import Evaluation, IntervalEvaluation
from dml_train.measure.names import BY_K, LONG_NAMES

LEVEL = 0.95  # of all intervals
# The names of per-query values that aren't their metric's own.
_PER_QUERY = {
    "mean_reciprocal_rank": "reciprocal_rank",
    "mean_inverse_negative_penalty": "inverse_negative_penalty",
    "average_precision_at": "average_precision",
    "reciprocal_rank_at": "reciprocal_rank",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of an evaluation.

    Args:
        name: its name on the page, ``"Recall@1"``.
        key: the name of its per-query values, ``"recall@1"``, if it has any.
        value: its value.
        low, high: the bounds of its bootstrap interval, if it has one.
    """

    name: str
    key: str
    value: float
    low: float | None = None
    high: float | None = None


def list_metrics(result: Mapping[str, Any], evaluation: Evaluation | None = None) -> list[Metric]:
    """List the metrics that are shares, in reading order.

    Omitted are metrics of a K beyond the gallery beside those of smaller ones, and precision@1 beside Recall@1.

    Args:
        result: ``to_dict()`` of an evaluation.
        evaluation: gives the intervals, if it is an `IntervalEvaluation`.
    """
    items = result.get("n_gallery", math.inf)
    named: list[tuple[str, str, float]] = []
    for key, title in BY_K.items():
        values = result.get(key, {})
        shown = {k: value for k, value in values.items() if int(k) <= items} or values
        named += [(f"{title}@{k}", f"{_PER_QUERY.get(key, key)}@{k}", value) for k, value in shown.items()]
    for key, name in LONG_NAMES.items():
        if isinstance(result.get(key), float) and not (
            key == "precision_at_1" and "1" in result.get("recall", {})
        ):
            named.append((name, _PER_QUERY.get(key, key), result[key]))
    metrics = []
    for name, key, value in named:
        if isinstance(evaluation, IntervalEvaluation) and key in evaluation.per_query:
            bounds = evaluation.confidence_interval(key, level=LEVEL)
            metrics.append(Metric(name, key, value, bounds.low, bounds.high))
        else:
            metrics.append(Metric(name, key, value))
    return metrics
