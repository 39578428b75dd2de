"""The run's embeddings as binary codes, beside themselves as floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dml_core import Evaluator, Registry
from dml_train.measure.evaluate import evaluate
from dml_train.report.finished import FinishedRun, metrics
from dml_train.report.paired import Difference, differences

EVALUATOR = "hamming"


@dataclass(frozen=True, slots=True)
class AgainstCodes:
    """What is lost, and what is saved, by keeping one bit of each dimension.

    Args:
        differences: paired tests, codes less floats; none where the evaluator has no such test.
        figures: name, as floats, as codes.
        bytes_as_floats, bytes_as_codes: of one item.
    """

    differences: Sequence[Difference]
    figures: Sequence[tuple[str, float, float]]
    bytes_as_floats: int
    bytes_as_codes: int


def against_codes(run: FinishedRun, registry: Registry) -> AgainstCodes | None:
    """Measure the signs of a run's embeddings.

    Returns:
        None where there is nothing to set beside: no embeddings, no evaluator of codes, or a run that is measured
        by codes itself.
    """
    table = run.recipe.evaluation.component()
    if run.measured is None or table["name"] == EVALUATOR or EVALUATOR not in registry.entries("evaluators"):
        return None
    wanted: dict[str, Any] = {key: table[key] for key in ("recall_at", "ties") if key in table}
    evaluator: Evaluator = registry.build(
        "evaluators", {"name": EVALUATOR, **wanted}, {"seed": run.recipe.training.seed}
    )
    measured, dim = run.measured, run.measured.embedded.embeddings.shape[1]
    as_codes = evaluate(evaluator, measured.embedded)
    ours, theirs = metrics(measured.evaluation.to_dict(), None), metrics(as_codes.to_dict(), None)
    values = {metric.name: metric.value for metric in theirs}
    return AgainstCodes(
        differences(measured.evaluation, as_codes, ours, theirs),
        [(metric.name, metric.value, values[metric.name]) for metric in ours if metric.name in values],
        measured.evaluator.bytes_per_item(dim),
        evaluator.bytes_per_item(dim),
    )
