"""Measure how a finished run's metrics spread over the test classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dml_eval_rs import Evaluation, evaluate
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder

MOST_CLASSES = 500  # when there are more classes, sums are not recorded
METRICS = ("recall@1", "map@r")


def sums_by_class(folder: RunFolder) -> dict[str, Any] | None:
    """Add up Recall@1 and MAP@R over the queries by test class, for paired comparisons of runs.

    Returns:
        The number of queries per class, sorted by label, and the sums; None if the number of
        classes is too large.
    """
    labels, queries = np.unique(np.load(folder.labels()), return_inverse=True)
    if len(labels) > MOST_CLASSES:
        return None
    with np.load(folder.per_query) as values:
        sums = {name: np.bincount(queries, values[name]).round(4).tolist() for name in METRICS}
    return {"queries": np.bincount(queries).tolist(), **sums}


def intervals_by_class(folder: RunFolder, recipe: Recipe) -> dict[str, float]:
    """Return half the widths of the 95 % intervals for Recall@1 and MAP@R, which show the spread
    over test classes.
    """
    labels = np.load(folder.labels())
    evaluation = evaluate(np.load(folder.embeddings()), labels, metrics=METRICS)
    return {
        "Recall@1 ± by class": half_width(evaluation, "recall@1", labels),
        "MAP@R ± by class": half_width(evaluation, "map@r", labels),
    }


def half_width(evaluation: Evaluation, name: str, labels: np.ndarray) -> float:
    """Return half the width of a metric's 95 % cluster-bootstrap interval over classes."""
    interval = evaluation.confidence_interval(name, by=labels)
    return (interval.high - interval.low) / 2
