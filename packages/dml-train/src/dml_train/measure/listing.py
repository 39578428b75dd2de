"""List metrics for readers, with intervals, and name logged values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dml_core import METRICS, Evaluation, IntervalEvaluation, metric_family, metric_title

LEVEL = 0.95  # the confidence level of all intervals
_PREFIXES = ("evaluation", "validation")  # the prefixes of logged metrics


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of an evaluation, and the bounds of the bootstrap interval, if there is any."""

    name: str  # "recall@1"
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def title(self) -> str:
        """The name for readers, for example ``"Recall@1"``."""
        return metric_title(self.name)


def list_metrics(result: Mapping[str, Any], evaluation: Evaluation | None = None) -> list[Metric]:
    """List the metrics in `result`, the dictionary of an evaluation, in order, except integers,
    which are counts.

    Pass an `IntervalEvaluation` to get intervals. A metric with a K that exceeds the gallery's size
    is omitted if the metric is also listed with a K that doesn't; precision@1 is omitted if
    recall@1 is listed.
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
    """Return K of ``"recall@K"``, or 0 for metrics not named by K."""
    k = name.partition("@")[2]
    return int(k) if k.isdecimal() else 0


def explain(names: Iterable[str]) -> dict[str, str]:
    """Return the titles and meanings of metrics; all Recall@K share a title."""
    families = dict.fromkeys(
        family for name in names if (family := metric_family(name)) is not None
    )
    return {METRICS[family].title: METRICS[family].meaning for family in families}


def title_of(logged: str) -> str:
    """Return the title of a logged value: Recall@1 for ``"evaluation/recall@1"``, loss for
    ``"loss"``.
    """
    prefix, _, name = logged.partition("/")
    if prefix not in _PREFIXES:
        return logged
    title = metric_title(name)
    return title if prefix == "evaluation" else f"{title} of the held-out classes"


def is_count(logged: str) -> bool:
    """Return whether a logged value is a number of queries or items, which is equal in all
    evaluations.
    """
    return logged.rpartition("/")[2] in ("n_queries", "n_unmatched", "n_gallery")


def repeats(name: str, names: Collection[str]) -> bool:
    """Return whether a value repeats a different value in `names`: Precision@1 equals Recall@1."""
    return name.endswith("precision@1") and name.removesuffix("precision@1") + "recall@1" in names
