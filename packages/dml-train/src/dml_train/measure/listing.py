"""The metrics of an evaluation that readers see, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dml_core import Evaluation, IntervalEvaluation
from dml_train.measure.names import LONG_NAMES

LEVEL = 0.95  # of all intervals
# The names of per-query values that aren't their metric's own.
_PER_QUERY = {"mean_reciprocal_rank": "reciprocal_rank"}


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

    Omitted are a Recall@K of a K beyond the gallery, and precision@1 beside Recall@1.

    Args:
        result: ``to_dict()`` of an evaluation.
        evaluation: gives the intervals, if it is an `IntervalEvaluation`.
    """
    recall, items = result.get("recall", {}), result.get("n_gallery", math.inf)
    shown = {k: value for k, value in recall.items() if int(k) <= items} or recall
    named = [(f"Recall@{k}", f"recall@{k}", value) for k, value in shown.items()]
    for key, name in LONG_NAMES.items():
        if isinstance(result.get(key), float) and not (key == "precision_at_1" and "1" in shown):
            named.append((name, _PER_QUERY.get(key, key), result[key]))
    metrics = []
    for name, key, value in named:
        if isinstance(evaluation, IntervalEvaluation) and key in evaluation.per_query:
            bounds = evaluation.confidence_interval(key, level=LEVEL)
            metrics.append(Metric(name, key, value, bounds.low, bounds.high))
        else:
            metrics.append(Metric(name, key, value))
    return metrics
