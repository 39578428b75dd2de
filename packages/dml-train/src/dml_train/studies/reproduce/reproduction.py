"""Reproducing tables: which runs are needed, doing them, and what each row came to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.measure.evaluate import Embedded, evaluate, flatten_metrics
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.studies.reproduce.paper import GLYPHS, Paper, PublishedTable, Row, row_recipe
from dml_train.studies.runs import Job, Outcome, run_all

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Planned:
    """A row on a data set, and its runs, one a seed."""

    row: Row
    jobs: Sequence[Job]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row came to.

    Args:
        row: which.
        values: by metric, a value a finished run, as shares of 1.
        faults: why runs couldn't be finished.
        queries: how many queries each run was measured on.
        seconds: processor time of its runs together; those that another row has, too, are counted there again.
        folders: its runs'.
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
    assignments: tuple[str, ...] = (),
) -> list[Planned]:
    """The runs of a table's rows on a data set; none for a row that has no recipe for it.

    A run's folder is named by a hash of its resolved recipe, so rows of any table that are one run share it.

    Args:
        table: whose rows.
        dataset: on which data set.
        out: runs go into folders of its folder ``runs``.
        registry: what recipes are checked against.
        root: where the data set is, if it needs to be somewhere.
        seeds: how many runs a row; seeds count up from the recipe's.
        assignments: changes of every recipe.

    Raises:
        DmlError: if a recipe isn't right.
    """
    planned = []
    for row in table.rows:
        jobs = []
        for seed in range(seeds):
            recipe = row_recipe(table, row, dataset, registry, root=root, seed=seed, assignments=assignments)
            if recipe is None:
                break
            folder = out / RUNS / f"{dataset}-{_key(recipe)}-seed-{recipe.training.seed}"
            jobs.append(Job(f"{dataset}, {row.label}, seed {recipe.training.seed}", recipe, folder))
        if jobs:
            planned.append(Planned(row, jobs))
    return planned


def _key(recipe: Recipe) -> str:
    """A recipe's hash, without what changes nothing of what is computed."""
    document = recipe.to_dict()
    del document["checkpoints"], document["logging"]
    for name in ("workers", "device"):
        document["training"].pop(name, None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]


def available(
    datasets: Sequence[str], root: Path | None, registry: Registry
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Which data sets can be used, with their roots, and why others can't.

    Without a root that is `GLYPHS` alone; with one, those that are under it.

    Args:
        datasets: those that are asked for.
        root: the folder that holds each in a folder of its name, or is the only one's own.
        registry: where they are found by name.
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
    planned: Sequence[Planned],
    *,
    processes: int,
    registry: Registry,
    console: Console,
    on_end: Callable[[Outcome], None],
) -> dict[Path, Outcome]:
    """Do all the runs that aren't done yet; how each ended, by its folder."""
    jobs = [job for row in planned for job in row.jobs]
    outcomes = run_all(jobs, processes=processes, registry=registry, console=console, on_end=on_end)
    return {outcome.job.folder: outcome for outcome in outcomes}


def measure(planned: Planned, outcomes: Mapping[Path, Outcome], registry: Registry) -> Measured:
    """What the runs of a row came to, by its evaluator."""
    values: dict[str, list[float]] = {}
    faults, seconds, queries = [], 0.0, 0
    for job in planned.jobs:
        outcome = outcomes[job.folder]
        seconds += outcome.seconds() or 0.0
        if outcome.fault is not None:
            faults.append(outcome.fault)
            continue
        result = _figures(planned.row.evaluator, outcome, registry)
        queries = int(result.get("n_queries", 0))
        for name, value in flatten_metrics(result).items():
            values.setdefault(name, []).append(value)
    folders = [job.folder.name for job in planned.jobs]
    return Measured(planned.row, values, faults, queries, seconds, folders)


def _figures(evaluator: str | None, outcome: Outcome, registry: Registry) -> dict[str, Any]:
    if evaluator is None:
        return outcome.metrics()
    recipe = outcome.job.recipe
    table = {"name": evaluator}
    if "recall_at" in (options := recipe.evaluation.component()):
        table["recall_at"] = options["recall_at"]
    built = registry.build("evaluators", table, {"seed": recipe.training.seed})
    return evaluate(built, Embedded.read(RunFolder(outcome.job.folder))).to_dict()


def incomparable(paper: Paper, dataset: str, assignments: tuple[str, ...] = ()) -> list[str]:
    """Why published figures can't be held against those measured on a data set; nothing if they can.

    Args:
        paper: whose figures.
        dataset: on which it was measured here.
        assignments: changes of every recipe, which the paper knows nothing of.
    """
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
    if assignments:
        reasons.append(f"every recipe was changed by {', '.join(assignments)}")
    return reasons


def finite(values: Sequence[float]) -> list[float]:
    """Those that are numbers."""
    return [value for value in values if not math.isnan(value)]
