"""A finished run as its reports need it: figures, embeddings, and what its items look like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dml_core import Dataset, DmlError, Evaluation, Evaluator, IntervalEvaluation, Registry, Split
from dml_train.measure.embed import align_labels
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate
from dml_train.measure.names import LONG_NAMES
from dml_train.recipe.tables import Recipe
from dml_train.report.figures import thumbnail
from dml_train.run_folder import RunFolder
from dml_train.training.run import read_recipe

LEVEL = 0.95  # of all intervals
# Under what name an evaluation keeps a metric's values for each query, where it isn't the metric's own.
_PER_QUERY = {"mean_reciprocal_rank": "reciprocal_rank"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of an evaluation.

    Args:
        name: as people read it, ``"Recall@1"``.
        key: that of the evaluation's values for each query, ``"recall@1"``; it may have none.
        value: the figure.
        low, high: the bounds of its bootstrap interval, if it has one.
    """

    name: str
    key: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """What items look like and are called; both are absent where the data set is."""

    split: Split | None

    def name(self, index: int) -> str:
        """The class's name."""
        return "" if self.split is None else self.split.class_names[int(self.split.labels[index])]

    def picture(self, index: int) -> str:
        """A thumbnail, as a data URI."""
        return "" if self.split is None else thumbnail(self.split.picture(index))


@dataclass(frozen=True, slots=True)
class Measured:
    """The embeddings of a run's test split, measured again: `evaluation.json` has no values for each query."""

    embedded: Embedded
    evaluator: Evaluator
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended, as its folder holds it.

    Args:
        folder: of the run.
        recipe: as resolved.
        result: ``evaluation.json``.
        lines: those of ``metrics.jsonl``; none if the run had no such logger.
        measured: None for a run that left its test split alone.
        queries, gallery: the looks of the items.
        absent: why they have none; empty if they have.
    """

    folder: RunFolder
    recipe: Recipe
    result: Mapping[str, Any]
    lines: Sequence[Mapping[str, float | None]]
    measured: Measured | None
    queries: Items
    gallery: Items
    absent: str

    @classmethod
    def read(cls, path: Path, registry: Registry) -> FinishedRun:
        """Read a run's folder, and measure its embeddings.

        Raises:
            DmlError: if it isn't a run's folder, the run hasn't ended, or a file in it is damaged.
        """
        folder = RunFolder.open(path)
        if not folder.evaluation.is_file():
            raise DmlError(
                f"the run in {path} has no evaluation.json yet; train on with --resume, then report"
            )
        recipe = read_recipe(folder, registry)
        result, lines = read_json(folder.evaluation), _lines(folder.metrics)
        nothing = Items(None)
        if not recipe.evaluation.test:
            return cls(folder, recipe, result, lines, None, nothing, nothing, "")
        embedded = Embedded.read(folder)
        evaluator = build_evaluator(recipe, registry, clustering=False)  # NMI has no interval
        measured = Measured(embedded, evaluator, evaluate(evaluator, embedded))
        try:
            dataset: Dataset = registry.build("datasets", recipe.dataset, {"seed": recipe.training.seed})
            queries, gallery = _items(dataset, embedded)
            absent = ""
        except DmlError as error:
            queries = gallery = nothing
            absent = str(error)
        return cls(folder, recipe, result, lines, measured, queries, gallery, absent)

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.path.resolve().name

    def metrics(self) -> list[Metric]:
        """The figures of evaluation.json that are shares, with intervals where the evaluation gives any."""
        return metrics(self.result, self.measured.evaluation if self.measured else None)


def metrics(result: Mapping[str, Any], evaluation: Evaluation | None) -> list[Metric]:
    """The figures that are shares, in the order in which people read them.

    Args:
        result: ``to_dict()`` of an evaluation.
        evaluation: gives the intervals, if it is an `IntervalEvaluation`.
    """
    named = [(f"Recall@{k}", f"recall@{k}", value) for k, value in result.get("recall", {}).items()]
    for key, name in LONG_NAMES.items():
        if isinstance(result.get(key), float):
            named.append((name, _PER_QUERY.get(key, key), result[key]))
    found = []
    for name, key, value in named:
        if isinstance(evaluation, IntervalEvaluation) and key in evaluation.per_query:
            interval = evaluation.confidence_interval(key, level=LEVEL)
            found.append(Metric(name, key, value, interval.low, interval.high))
        else:
            found.append(Metric(name, key, value))
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run's folder.

    Raises:
        DmlError: if it is damaged.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DmlError(f"{path} is damaged: {error}") from error
    return value


def _lines(path: Path) -> Sequence[Mapping[str, float | None]]:
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise DmlError(f"{path} is damaged: {error}") from error


def _items(dataset: Dataset, embedded: Embedded) -> tuple[Items, Items]:
    """The looks of queries and gallery.

    Raises:
        DmlError: if the data set isn't that which the embeddings are of.
    """
    queries, gallery = dataset.test, dataset.gallery or dataset.test
    same = np.array_equal(queries.labels, embedded.labels)
    if embedded.gallery_labels is not None:
        same = same and np.array_equal(align_labels(gallery, queries), embedded.gallery_labels)
    if not same:
        raise DmlError("the data set's labels aren't those of the run: it has changed since")
    return Items(queries), Items(gallery)
