"""Reproducing tables: plan the runs, do them, and collect each row's results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import DmlError, Registry, UnknownName
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate, make_evaluator, select_numbers
from dml_train.measure.levels import select_levels
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.studies.jobs import Job, Outcome
from dml_train.studies.reproduce.paper import GLYPHS, Paper, PublishedTable, Row, row_recipe
from dml_train.studies.runs import Executor, run_all

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row on a data set, and its runs, one a seed.

    Args:
        row: the row.
        jobs: its runs; none if only its published figures are shown.
        levels: the levels of the stored embeddings to measure; empty: all.
        fault: why it can't be planned; None if it can.
    """

    row: Row
    jobs: Sequence[Job] = ()
    levels: Sequence[str] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class RowResult:
    """The results of a row's runs.

    Args:
        row: the row.
        values: by metric, a value for each finished run, in [0, 1].
        faults: the errors of failed runs, or why none could be planned.
        queries: the number of queries of each run's evaluation.
        seconds: processor time of its runs together; a run that rows share counts in each.
        folders: names of its runs' folders.
    """

    row: Row
    values: Mapping[str, Sequence[float]]
    faults: Sequence[str]
    queries: int
    seconds: float
    folders: Sequence[str]


def plan(
    table: PublishedTable,
    dataset: str,
    out: Path,
    registry: Registry,
    *,
    root: str | None = None,
    seeds: int = 1,
    overrides: tuple[str, ...] = (),
) -> list[PlannedRow]:
    """Plan the runs of a table's rows on a data set.

    A hash of the resolved recipe names a run's folder, so that equal rows of any table share it, and so do rows that
    measure different levels of one network. Rows that can't be run stay, without runs; rows that have neither a run
    nor a published figure on the data set are omitted.

    Args:
        table: the published table.
        dataset: the data set's name.
        out: receives the runs' folders, in ``runs``.
        registry: checks the recipes.
        root: the data set's folder, if it needs one.
        seeds: runs a row; seeds count up from the recipe's.
        overrides: changes of every recipe.

    Raises:
        DmlError: if a recipe is invalid. A component that no installed plugin provides is the fault of its row if the
            row itself replaces a table: pytorch-metric-learning is optional.
    """
    planned = []
    for row in table.rows:
        if row.published_only:
            if dataset == GLYPHS or dataset in row.published:
                planned.append(PlannedRow(row))
            continue
        jobs = []
        try:
            for seed in range(seeds):
                recipe = row_recipe(table, row, dataset, registry, root=root, seed=seed, overrides=overrides)
                if recipe is None:
                    break
                folder = out / RUNS / f"{dataset}-{_key(recipe)}-seed-{recipe.training.seed}"
                jobs.append(Job(f"{dataset}, {row.label}, seed {recipe.training.seed}", recipe, folder))
        except UnknownName as error:
            if not row.replace:
                raise
            planned.append(PlannedRow(row, fault=str(error)))
        else:
            if jobs:
                planned.append(PlannedRow(row, jobs, row.levels.get(dataset, ())))
    return planned


def _key(recipe: Recipe) -> str:
    """Hash a recipe without the keys that don't affect its results."""
    document = recipe.to_dict()
    del document["checkpoints"], document["logging"]
    for name in ("workers", "device"):
        document["training"].pop(name, None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]


def find_datasets(
    datasets: Sequence[str], root: Path | None, registry: Registry
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Find the usable data sets, and say why others aren't usable.

    Without `root` only `GLYPHS` is usable; with it, the data sets under it.

    Args:
        datasets: the names asked for.
        root: holds each data set in a folder of its name, or is the folder of the only one.
        registry: provides the data sets.

    Returns:
        The folder of each usable data set (None: it needs none), and the reason for each other one.
    """
    if root is None:
        missing = {name: "the folder of the data sets wasn't given" for name in datasets if name != GLYPHS}
        return {name: None for name in datasets if name == GLYPHS}, missing
    found: dict[str, str | None] = {}
    missing = {}
    for name in datasets:
        if name == GLYPHS:
            continue
        folder = root / name if (root / name).is_dir() else root
        try:
            registry.build("datasets", {"name": name, "root": str(folder)}, {"seed": 0})
        except DmlError as error:
            missing[name] = str(error)
        else:
            found[name] = str(folder)
    return found, missing


def run_planned(
    planned: Sequence[PlannedRow],
    *,
    processes: int,
    executor: Executor | None,
    registry: Registry,
    console: Console,
    on_end: Callable[[Outcome], None],
) -> dict[Path, Outcome]:
    """Do all unfinished runs; return every outcome by its run's folder."""
    jobs = [job for row in planned for job in row.jobs]
    outcomes = run_all(
        jobs, processes=processes, executor=executor, registry=registry, console=console, on_end=on_end
    )
    return {outcome.job.folder: outcome for outcome in outcomes}


def measure(planned: PlannedRow, outcomes: Mapping[Path, Outcome], registry: Registry) -> RowResult:
    """Collect the results of a row's runs, by its evaluator and on its levels."""
    values: dict[str, list[float]] = {}
    faults, seconds, queries = [planned.fault] if planned.fault else [], 0.0, 0
    for job in planned.jobs:
        outcome = outcomes[job.folder]
        seconds += outcome.seconds() or 0.0
        if outcome.fault is not None:
            faults.append(outcome.fault)
            continue
        metrics = _metrics(planned, outcome, registry)
        queries = int(metrics.get("n_queries", 0))
        for name, value in select_numbers(metrics).items():
            values.setdefault(name, []).append(value)
    folders = [job.folder.name for job in planned.jobs]
    return RowResult(planned.row, values, faults, queries, seconds, folders)


def _metrics(planned: PlannedRow, outcome: Outcome, registry: Registry) -> dict[str, Any]:
    """Read a run's metrics, or measure its stored embeddings by another evaluator or on some of its levels."""
    evaluator, recipe = planned.row.evaluator, outcome.job.recipe
    if evaluator is None and not planned.levels:
        return outcome.metrics()
    embedded = Embedded.read(RunFolder(outcome.job.folder))
    if planned.levels:
        embedded = select_levels(embedded, recipe, planned.levels)
    if evaluator is None:
        built = build_evaluator(recipe, registry)
    else:
        options = recipe.evaluation.component()
        shared = {"metrics": options["metrics"]} if "metrics" in options else {}
        built = make_evaluator({"name": evaluator, **shared}, registry, recipe.training.seed)
    return evaluate(built, embedded).to_dict()


def list_incomparabilities(paper: Paper, dataset: str | None, overrides: tuple[str, ...] = ()) -> list[str]:
    """List the reasons why published figures can't be compared with those measured; empty if they can.

    Args:
        paper: the paper of the published figures.
        dataset: the data set of the measured ones; None: nothing is measured.
        overrides: changes of every recipe, which the paper doesn't have.
    """
    if dataset is None:
        return []
    reasons = []
    if dataset == GLYPHS:
        reasons.append(
            "measured on glyphs (rendered characters) with a small network trained from scratch, published on "
            f"photographs with {paper.backbone}: only the order of the rows can be compared"
        )
    if paper.selected_on_test:
        reasons.append(
            f"the published figures were selected on the test split ({paper.selection}); here the last weights are "
            "measured, and the test split selects nothing"
        )
    if overrides:
        reasons.append(f"every recipe was changed by {', '.join(overrides)}")
    return reasons


def drop_nan(values: Sequence[float]) -> list[float]:
    """Return the values that aren't NaN."""
    return [value for value in values if not math.isnan(value)]
