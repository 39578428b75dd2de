"""The run's embeddings as binary codes, compared with the same embeddings as floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dml_core import Registry
from dml_train.measure.evaluate import evaluate, make_evaluator, select_retrieval
from dml_train.measure.listing import list_metrics
from dml_train.report.finished import FinishedRun
from dml_train.report.paired import MetricDifference, compare_metrics

EVALUATOR = "hamming"
_SHARED = ("metrics", "unmatched", "ties")  # options of both evaluations


@dataclass(frozen=True, slots=True)
class CodesComparison:
    """The loss in metrics, and the saving in bytes, of keeping one bit per dimension.

    Args:
        differences: paired tests, codes minus floats; none if the evaluator has no such test.
        metrics: title, value of the floats, value of the codes.
        bytes_as_floats, bytes_as_codes: per item.
    """

    differences: Sequence[MetricDifference]
    metrics: Sequence[tuple[str, float, float]]
    bytes_as_floats: int
    bytes_as_codes: int


def compare_with_codes(run: FinishedRun, registry: Registry) -> CodesComparison | None:
    """Evaluate the signs of a run's embeddings.

    Returns:
        None where there is nothing to compare: no embeddings, no evaluator of codes, or a run that is evaluated by
        codes itself.
    """
    table = run.recipe.evaluation.component()
    if run.test is None or table["name"] == EVALUATOR or EVALUATOR not in registry.entries("evaluators"):
        return None
    wanted = {key: value for key, value in select_retrieval(table).items() if key in _SHARED}
    evaluator = make_evaluator({**wanted, "name": EVALUATOR}, registry, run.recipe.training.seed)
    as_floats, dim = run.test.evaluation, run.test.embedded.embeddings.shape[1]
    as_codes = evaluate(evaluator, run.test.embedded)
    float_metrics, code_metrics = list_metrics(as_floats.to_dict()), list_metrics(as_codes.to_dict())
    values = {metric.name: metric.value for metric in code_metrics}
    return CodesComparison(
        compare_metrics(as_floats, as_codes, float_metrics, code_metrics),
        [
            (metric.title, metric.value, values[metric.name])
            for metric in float_metrics
            if metric.name in values
        ],
        run.test.evaluator.bytes_per_item(dim),
        evaluator.bytes_per_item(dim),
    )
