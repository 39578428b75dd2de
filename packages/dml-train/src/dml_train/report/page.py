"""From a run's folder to ``report.html``: what is on the page, in the order in which it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from dml_core import Dataset, DmlError, Evaluation, Evaluator, Registry, Split
from dml_core import registry as installed
from dml_train.embedding import Embedded, evaluate, shared_labels
from dml_train.report.figures import (
    Figure,
    curves,
    map_of_pictures,
    map_of_points,
    principal_plane,
    thumbnail,
)
from dml_train.report.retrieval import Search
from dml_train.run_folder import RunFolder, read_array, write_whole
from dml_train.training import read_recipe

COMPARISON = "comparison.json"  # {name: figures}, left by whoever compared the run with something
_MARKED_CLASSES = 8
_LEVEL = 0.95
_LONG_NAMES = {
    "precision_at_1": "Precision@1",
    "r_precision": "R-precision",
    "map_at_r": "MAP@R",
    "mean_reciprocal_rank": "Mean reciprocal rank",
    "nmi": "NMI",
    "ami": "AMI",
}
# Under what name an evaluation keeps a metric's values for each query, where it isn't the metric's own.
_PER_QUERY = {"mean_reciprocal_rank": "reciprocal_rank"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table of figures; `low` and `high` bound its bootstrap interval, if it has one."""

    name: str
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


def write_report(run_dir: Path, registry: Registry | None = None) -> Path:
    """Write a finished run's ``report.html``: figures with intervals, curves, retrievals, maps, worst classes.

    The page is one file, without scripts and without anything from elsewhere. Names and pictures of items are on
    it where the data set can be had; where it can't, a note says why.

    Args:
        run_dir: the run's folder. With a ``comparison.json`` in it, ``{name: figures}``, that table is shown, too.
        registry: where the data set and the evaluator are found; default: all that is installed.

    Returns:
        The page's path. A page that was there is replaced.

    Raises:
        DmlError: if it isn't a run's folder, the run hasn't ended, or a file in it is damaged.
    """
    registry = registry or installed()
    folder = RunFolder.open(run_dir)
    if not folder.evaluation.is_file():
        raise DmlError(
            f"the run in {run_dir} has no evaluation.json yet; train on with --resume, then report"
        )
    recipe = read_recipe(folder, registry)
    result = _json(folder.evaluation)
    embedded = _embedded(folder)
    context = {"seed": recipe.training.seed}
    # Clusters have no intervals, and took their time already.
    table = {key: value for key, value in recipe.evaluation.component().items() if key != "nmi"}
    evaluator: Evaluator = registry.build("evaluators", table, context)
    search = Search.of(evaluator, embedded)
    try:
        queries, gallery = _items(registry.build("datasets", recipe.dataset, context), embedded)
        absent = ""
    except DmlError as error:
        queries = gallery = Items(None)
        absent = str(error)

    comparison = run_dir / COMPARISON
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=run_dir.resolve().name,
            recipe=recipe,
            recipe_text=folder.recipe.read_text(encoding="utf-8"),
            result=result,
            metrics=_metrics(result, evaluate(evaluator, embedded)),
            level=_LEVEL,
            comparison=_json(comparison) if comparison.is_file() else {},
            curves=curves(_lines(folder.metrics)),
            maps=_maps(embedded, queries),
            wrong=search.examples(right=False),
            right=search.examples(right=True),
            worst=search.worst_classes(),
            queries=queries,
            gallery=gallery,
            absent=absent,
        )
    )
    path = run_dir / "report.html"
    write_whole(path, lambda file: file.write(page.encode()))
    return path


def _items(dataset: Dataset, embedded: Embedded) -> tuple[Items, Items]:
    """The looks of queries and gallery.

    Raises:
        DmlError: if the data set isn't that which the embeddings are of.
    """
    queries, gallery = dataset.test, dataset.gallery or dataset.test
    same = np.array_equal(queries.labels, embedded.labels)
    if embedded.gallery_labels is not None:
        same = same and np.array_equal(shared_labels(gallery, queries), embedded.gallery_labels)
    if not same:
        raise DmlError("the data set's labels aren't those of the run: it has changed since")
    return Items(queries), Items(gallery)


def _metrics(result: Mapping[str, Any], evaluation: Evaluation) -> list[Metric]:
    """The figures of evaluation.json that are shares, with intervals where the evaluation gives any."""
    named = [(f"Recall@{k}", f"recall@{k}", value) for k, value in result.get("recall", {}).items()]
    for key, name in _LONG_NAMES.items():
        if isinstance(result.get(key), float):
            named.append((name, _PER_QUERY.get(key, key), result[key]))
    interval: Callable[..., Any] | None = getattr(evaluation, "confidence_interval", None)
    metrics = []
    for name, key, value in named:
        if interval is not None and key in evaluation.per_query:
            bounds = interval(key, level=_LEVEL)
            metrics.append(Metric(name, value, bounds.low, bounds.high))
        else:
            metrics.append(Metric(name, value))
    return metrics


def _maps(embedded: Embedded, items: Items) -> list[Figure]:
    points_Q2, share = principal_plane(embedded.embeddings)
    labels = np.asarray(embedded.labels)
    classes = np.unique(labels)
    spread = np.unique(np.linspace(0, len(classes) - 1, min(_MARKED_CLASSES, len(classes))).astype(np.int64))
    firsts = [int(np.flatnonzero(labels == c)[0]) for c in classes[spread]]
    named = {int(labels[i]): items.name(i) or f"class {labels[i]}" for i in firsts}
    maps = [map_of_points(points_Q2, labels, named, share)]
    if items.split is not None:
        maps.append(map_of_pictures(points_Q2, items.split.picture))
    return maps


def _embedded(folder: RunFolder) -> Embedded:
    if not folder.embeddings("gallery").exists():
        return Embedded(read_array(folder.embeddings()), read_array(folder.labels()))
    return Embedded(
        read_array(folder.embeddings()),
        read_array(folder.labels()),
        read_array(folder.embeddings("gallery")),
        read_array(folder.labels("gallery")),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DmlError(f"{path} is damaged: {error}") from error
    return value


def _lines(path: Path) -> Sequence[Mapping[str, float]]:
    """The lines of metrics.jsonl; none if the run had no such logger."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise DmlError(f"{path} is damaged: {error}") from error


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dml_train", "report"),
        autoescape=True,  # names of classes and files come from anywhere
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["zip"] = zip
    environment.filters["share"] = lambda value: f"{value:.4f}" if isinstance(value, int | float) else "–"
    return environment
