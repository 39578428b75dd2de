"""Read a finished run for reports, and compare evaluations of identical queries."""

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
    """The names and pictures of items; both are empty if the data set can't be loaded."""

    split: Split | None

    def name(self, index: int) -> str:
        """Return the name of the item's class."""
        return "" if self.split is None else self.split.class_names[int(self.split.labels[index])]

    def picture(self, index: int) -> str:
        """Return a thumbnail, as a data URI."""
        return "" if self.split is None else make_thumbnail(self.split.picture(index))


@dataclass(frozen=True, slots=True)
class EvaluatedEmbeddings:
    """The embeddings of a run's test split, with the evaluation."""

    embedded: Embedded
    evaluator: Evaluator
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, read from the run's folder."""

    folder: RunFolder
    recipe: Recipe  # the resolved recipe
    result: Mapping[str, Any]  # ``evaluation.json``
    lines: Sequence[Mapping[str, float | None]]  # the lines of ``metrics.jsonl``, if it exists
    baselines: Baselines  # raw pixels and the untrained network, if the run measured them
    test: EvaluatedEmbeddings | None  # None if the run didn't use the test split
    queries: Items
    gallery: Items
    train: Items
    absent: str  # the reason if names and pictures are missing; otherwise empty

    @classmethod
    def read(cls, run_dir: Path, registry: Registry) -> FinishedRun:
        """Read a run's folder, and restore the evaluation; if values per query aren't saved,
        evaluate again.

        Raise a `DmlError` if the run isn't finished, or a result file was changed or damaged.
        """
        folder = RunFolder.open(run_dir)
        recipe = read_recipe(folder, registry)
        result, lines = folder.read_evaluation(), folder.read_metrics()
        baselines, test, absent = Baselines.read(folder), None, ""
        queries = gallery = train = Items(None)
        if recipe.evaluation.test:
            embedded = Embedded.read(folder)
            # Clustering should not be repeated, since `result` already contains these metrics.
            evaluator = build_evaluator(recipe, registry, clustering=False)
            evaluation = restore_evaluation(folder, recipe, result, evaluator)
            if evaluation is None:
                evaluation = evaluate(evaluator, embedded)
            test = EvaluatedEmbeddings(embedded, evaluator, evaluation)
            try:
                dataset = build_dataset(recipe, registry)
                queries, gallery = _items(dataset, embedded)
                train = Items(dataset.train)
            except DmlError as error:
                absent = str(error)
        return cls(folder, recipe, result, lines, baselines, test, queries, gallery, train, absent)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.path.resolve().name

    def metrics(self) -> list[Metric]:
        """List the metrics in evaluation.json, with intervals if the evaluation includes
        intervals.
        """
        return list_metrics(self.result, self.test.evaluation if self.test else None)


def _items(dataset: Dataset, embedded: Embedded) -> tuple[Items, Items]:
    """Return names and pictures of queries and gallery; raise a `DmlError` if the data set's labels
    differ.
    """
    queries, gallery = dataset.test, dataset.gallery or dataset.test
    same = np.array_equal(queries.labels, embedded.labels)
    if embedded.gallery_labels is not None:
        same = same and np.array_equal(align_labels(gallery, queries), embedded.gallery_labels)
    if not same:
        raise DmlError(
            "the labels of data set and run differ: the data set was changed after the run"
        )
    return Items(queries), Items(gallery)


CODES = "hamming"  # the evaluator of codes
_SHARED = ("metrics", "unmatched", "ties")  # options of the run's evaluator to use for codes, too


class MetricDifference(NamedTuple):
    """A metric in a pair of evaluations."""

    metric: Metric  # the metric in the first evaluation
    second: float  # value in the second evaluation
    test: PairedComparison  # second minus first


def compare_metrics(
    first: Evaluation, second: Evaluation, first_metrics: list[Metric], second_metrics: list[Metric]
) -> list[MetricDifference]:
    """Run a paired test per metric on two evaluations of the same queries; return [] if `second`
    can't be compared.
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
    """The metrics and bytes of codes, with a bit per dimension, compared with floats."""

    differences: Sequence[
        MetricDifference
    ]  # codes minus floats; empty if a paired test isn't possible
    metrics: Sequence[tuple[str, float, float]]  # title, value for floats, value for codes
    bytes_as_floats: int  # per item
    bytes_as_codes: int


def compare_with_codes(run: FinishedRun, registry: Registry) -> CodesComparison | None:
    """Evaluate the signs of a run's embeddings.

    Return None if embeddings or an evaluator for codes are missing, or if the run's evaluator
    already uses codes.
    """
    table = run.recipe.evaluation.component()
    if run.test is None or table["name"] == CODES or CODES not in registry.entries("evaluators"):
        return None
    wanted = {key: value for key, value in select_retrieval(table).items() if key in _SHARED}
    evaluator = make_evaluator({**wanted, "name": CODES}, registry, run.recipe.training.seed)
    as_floats, dim = run.test.evaluation, run.test.embedded.embeddings.shape[1]
    as_codes = evaluate(evaluator, run.test.embedded)
    for_floats, for_codes = list_metrics(as_floats.to_dict()), list_metrics(as_codes.to_dict())
    values = {metric.name: metric.value for metric in for_codes}
    return CodesComparison(
        compare_metrics(as_floats, as_codes, for_floats, for_codes),
        [
            (metric.title, metric.value, values[metric.name])
            for metric in for_floats
            if metric.name in values
        ],
        run.test.evaluator.bytes_per_item(dim),
        evaluator.bytes_per_item(dim),
    )
