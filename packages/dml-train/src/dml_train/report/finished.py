"""A finished run as its reports need it, and the comparison of two evaluations of the same queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_core import (
    ComparableEvaluation,
    Dataset,
    DmlError,
    Evaluation,
    Evaluator,
    PairedComparison,
    Registry,
    Split,
)
from dml_train.measure.embed import align_labels
from dml_train.measure.evaluate import (
    Embedded,
    build_evaluator,
    evaluate,
    make_evaluator,
    restore_evaluation,
    select_retrieval,
)
from dml_train.measure.listing import Metric, list_metrics
from dml_train.recipe.tables import Recipe
from dml_train.report.rendering import make_thumbnail
from dml_train.run_folder import RunFolder
from dml_train.training.baselines import Baselines
from dml_train.training.build import build_dataset
from dml_train.training.run import read_recipe


@dataclass(frozen=True, slots=True)
class Items:
    """The names and pictures of items; both are missing where the data set is."""

    split: Split | None

    def name(self, index: int) -> str:
        """Return the name of the item's class."""
        return "" if self.split is None else self.split.class_names[int(self.split.labels[index])]

    def picture(self, index: int) -> str:
        """Return a thumbnail, as a data URI."""
        return "" if self.split is None else make_thumbnail(self.split.picture(index))


@dataclass(frozen=True, slots=True)
class EvaluatedEmbeddings:
    """The embeddings of a run's test split, with their evaluation."""

    embedded: Embedded
    evaluator: Evaluator
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, read from its folder."""

    folder: RunFolder
    recipe: Recipe  # as resolved
    result: Mapping[str, Any]  # ``evaluation.json``
    lines: Sequence[Mapping[str, float | None]]  # of ``metrics.jsonl``; none if the run had no such logger
    baselines: Baselines  # raw pixels and the untrained network, where the run measured them
    test: EvaluatedEmbeddings | None  # of the test split; None for a run that didn't use it
    queries: Items
    gallery: Items
    absent: str  # why the items have no names and pictures; empty if they have

    @classmethod
    def read(cls, run_dir: Path, registry: Registry) -> FinishedRun:
        """Read a run's folder.

        The evaluation of the run's end is restored where its per-query values are saved; otherwise the embeddings are
        evaluated again. Raise DmlError if the run isn't finished, or a result file was changed or damaged.
        """
        folder = RunFolder.open(run_dir)
        recipe = read_recipe(folder, registry)
        result, lines = folder.read_evaluation(), folder.read_metrics()
        baselines, test, absent = Baselines.read(folder), None, ""
        queries = gallery = Items(None)
        if recipe.evaluation.test:
            embedded = Embedded.read(folder)
            # `result` has the metrics of clusters.
            evaluator = build_evaluator(recipe, registry, clustering=False)
            evaluation = restore_evaluation(folder, recipe, result, evaluator)
            if evaluation is None:
                evaluation = evaluate(evaluator, embedded)
            test = EvaluatedEmbeddings(embedded, evaluator, evaluation)
            try:
                queries, gallery = _items(build_dataset(recipe, registry), embedded)
            except DmlError as error:
                absent = str(error)
        return cls(folder, recipe, result, lines, baselines, test, queries, gallery, absent)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.path.resolve().name

    def metrics(self) -> list[Metric]:
        """List the metrics of evaluation.json, with intervals where the evaluation gives any."""
        return list_metrics(self.result, self.test.evaluation if self.test else None)


def _items(dataset: Dataset, embedded: Embedded) -> tuple[Items, Items]:
    """Return the names and pictures of queries and gallery; raise DmlError if the data set isn't the embeddings'."""
    queries, gallery = dataset.test, dataset.gallery or dataset.test
    same = np.array_equal(queries.labels, embedded.labels)
    if embedded.gallery_labels is not None:
        same = same and np.array_equal(align_labels(gallery, queries), embedded.gallery_labels)
    if not same:
        raise DmlError("the data set's labels aren't those of the run: it has changed since")
    return Items(queries), Items(gallery)


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
    """Test every metric with values per query in both evaluations of the same queries; [] if they have no test."""
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

    Return None without embeddings or an evaluator of codes, or for a run that is evaluated by codes itself.
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
