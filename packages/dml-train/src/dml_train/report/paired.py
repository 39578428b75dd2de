"""Two evaluations of the same queries: how they differ, and whether by more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dml_core import ComparableEvaluation, Evaluation, PairedComparison, Registry
from dml_train.measure.evaluate import evaluate, make_evaluator, select_retrieval
from dml_train.measure.listing import Metric, list_metrics
from dml_train.report.finished import FinishedRun

CODES = "hamming"  # the evaluator of codes
_SHARED = ("metrics", "unmatched", "ties")  # options of both evaluations


class MetricDifference(NamedTuple):
    """One metric of two evaluations."""

    metric: Metric  # of the first one
    second: float  # its value in the second one
    test: PairedComparison  # the second minus the first


def compare_metrics(
    first: Evaluation, second: Evaluation, first_metrics: list[Metric], second_metrics: list[Metric]
) -> list[MetricDifference]:
    """Test every metric for which both evaluations, of the same queries in the same order, have per-query values.

    Empty if `second` is no `ComparableEvaluation`.
    """
    if not isinstance(second, ComparableEvaluation):
        return []
    values = {metric.name: metric.value for metric in second_metrics}
    return [
        MetricDifference(metric, values[metric.name], second.compare(first, metric.name))
        for metric in first_metrics
        if all(metric.name in names for names in (values, first.per_query, second.per_query))
    ]


class CodesComparison(NamedTuple):
    """The loss in metrics, and the saving in bytes, of keeping one bit per dimension."""

    differences: Sequence[MetricDifference]  # codes minus floats; none if the evaluator has no paired test
    metrics: Sequence[tuple[str, float, float]]  # title, value of the floats, value of the codes
    bytes_as_floats: int  # per item
    bytes_as_codes: int


def compare_with_codes(run: FinishedRun, registry: Registry) -> CodesComparison | None:
    """Evaluate the signs of a run's embeddings.

    Returns:
        None where there is nothing to compare: no embeddings, no evaluator of codes, or a run that is evaluated by
        codes itself.
    """
    table = run.recipe.evaluation.component()
    if run.test is None or table["name"] == CODES or CODES not in registry.entries("evaluators"):
        return None
    wanted = {key: value for key, value in select_retrieval(table).items() if key in _SHARED}
    evaluator = make_evaluator({**wanted, "name": CODES}, registry, run.recipe.training.seed)
    as_floats, dim = run.test.evaluation, run.test.embedded.embeddings.shape[1]
    as_codes = evaluate(evaluator, run.test.embedded)
    of_floats, of_codes = list_metrics(as_floats.to_dict()), list_metrics(as_codes.to_dict())
    values = {metric.name: metric.value for metric in of_codes}
    return CodesComparison(
        compare_metrics(as_floats, as_codes, of_floats, of_codes),
        [(metric.title, metric.value, values[metric.name]) for metric in of_floats if metric.name in values],
        run.test.evaluator.bytes_per_item(dim),
        evaluator.bytes_per_item(dim),
    )
