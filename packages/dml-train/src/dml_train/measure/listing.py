"""The metrics of an evaluation that readers see, with their intervals, and the names of logged values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dml_core import METRICS, Evaluation, IntervalEvaluation, metric_family, metric_title

LEVEL = 0.95  # of all intervals
_PREFIXES = ("evaluation", "validation")  # of logged values


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of an evaluation, and the bounds of its bootstrap interval, if it has one."""

    name: str  # "recall@1"
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def title(self) -> str:
        """The name for readers, ``"Recall@1"``."""
        return metric_title(self.name)


def list_metrics(result: Mapping[str, Any], evaluation: Evaluation | None = None) -> list[Metric]:
    """List the metrics of ``to_dict()`` of an evaluation in the order in which they were asked.

    Its floats are metrics, and its integers counts. An `IntervalEvaluation` gives the intervals. Omitted are metrics of
    a K beyond the gallery beside those of smaller ones, and precision@1 beside recall@1.
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


def explain(names: Iterable[str]) -> dict[str, str]:
    """Return title and meaning of these metrics; all Recall@K have one."""
    families = dict.fromkeys(family for name in names if (family := metric_family(name)) is not None)
    return {METRICS[family].title: METRICS[family].meaning for family in families}


def title_of(logged: str) -> str:
    """Return the title of a logged value: Recall@1 of ``"evaluation/recall@1"``; of ``"loss"``, the same."""
    prefix, _, name = logged.partition("/")
    if prefix not in _PREFIXES:
        return logged
    title = metric_title(name)
    return title if prefix == "evaluation" else f"{title} of the held-out classes"


def is_count(logged: str) -> bool:
    """Whether a logged value is a number of queries or items, which is the same at every evaluation."""
    return logged.rpartition("/")[2] in ("n_queries", "n_unmatched", "n_gallery")


def repeats(name: str, names: Collection[str]) -> bool:
    """Whether a value, logged or not, repeats another of these: Precision@1 is Recall@1."""
    return name.endswith("precision@1") and name.removesuffix("precision@1") + "recall@1" in names
