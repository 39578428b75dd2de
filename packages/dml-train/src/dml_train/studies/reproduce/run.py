"""Plan the runs of papers' tables, train and evaluate them, and write a page per paper."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from dml_core import DmlError, Registry, UnknownName
from dml_core import registry as installed
from dml_train.files import make_folder, write_json, write_text
from dml_train.measure.evaluate import (
    Embedded,
    build_evaluator,
    evaluate_selected,
    make_evaluator,
    select_numbers,
)
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.studies.reproduce.page import (
    RowResult,
    Section,
    as_json,
    list_incomparabilities,
    markdown,
)
from dml_train.studies.reproduce.paper import (
    GLYPHS,
    Paper,
    PublishedTable,
    Row,
    choose,
    papers,
    row_recipe,
)
from dml_train.studies.runs import Executor, Job, Outcome, run_all, show_ends


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row on a data set."""

    row: Row
    jobs: Sequence[Job] = ()  # a run per seed; none if only published figures are shown
    levels: Sequence[str] = ()  # the levels of the stored embeddings to measure; empty: all
    fault: str | None = None  # why the run can not be planned; None if it can


@dataclass(frozen=True, slots=True)
class PlannedTables:
    """The planned runs of tables."""

    # The rows, by paper, table and data set; the data set is None if the table's rows can't be run.
    groups: Mapping[tuple[str, str, str | None], Sequence[PlannedRow]]
    left_out: list[str]  # tables on missing data sets, with the reasons

    def rows(self) -> list[PlannedRow]:
        """Return all rows."""
        return [row for group in self.groups.values() for row in group]

    def jobs(self) -> list[Job]:
        """Return all runs, with duplicates if rows share runs."""
        return [job for row in self.rows() for job in row.jobs]


def plan_tables(
    names: Sequence[str],
    out: str | Path,
    *,
    data: str | Path | None = None,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    known: Mapping[str, Paper] | None = None,
    registry: Registry | None = None,
) -> PlannedTables:
    """Plan the runs of `reproduce`, which documents the arguments and errors."""
    known, registry = known or papers(), registry or installed()
    tables = [
        (paper, name) for paper, names in choose(tuple(names), known).items() for name in names
    ]
    wanted = {dataset for paper, name in tables for dataset in known[paper].tables[name].datasets()}
    on_disk = sorted(wanted - {GLYPHS})
    roots, missing = _find_datasets(on_disk, Path(data) if data else None, registry)
    groups: dict[tuple[str, str, str | None], list[PlannedRow]] = {}
    left_out = []
    for paper, name in tables:
        table = known[paper].tables[name]
        datasets = table.datasets()
        if not datasets or (table.pending and roots.keys().isdisjoint(datasets)):
            groups[paper, name, None] = [PlannedRow(row) for row in table.rows]
            continue
        for dataset in datasets:
            if dataset in roots:
                changes = roots[dataset], seeds, tuple(overrides)
                groups[paper, name, dataset] = _plan_rows(
                    table, dataset, Path(out), registry, *changes
                )
            elif dataset in missing and (data is not None or GLYPHS not in datasets):
                left_out.append(f"{paper}/{name} on {dataset}: {missing[dataset]}")
    if not any(groups.values()):
        reasons = "\n  ".join(left_out)
        raise DmlError(f"no data set of these tables was found:\n  {reasons}", arguments=("data",))
    return PlannedTables(groups, left_out)


def _find_datasets(
    names: Iterable[str], data: Path | None, registry: Registry
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Find data sets in the subfolders of `data`, or in `data` itself; if not given, only use
    `GLYPHS`.

    Return the folders of data sets that are found (None for `GLYPHS`), and the reasons for missing
    data sets.
    """
    if data is None:
        return {GLYPHS: None}, dict.fromkeys(names, "the folder of the data sets wasn't given")
    found: dict[str, str | None] = {}
    missing: dict[str, str] = {}
    for name in names:
        folder = data / name if (data / name).is_dir() else data
        try:
            registry.build("datasets", {"name": name, "root": str(folder)}, {"seed": 0})
        except DmlError as error:
            missing[name] = str(error)
        else:
            found[name] = str(folder)
    return found, missing


def _plan_rows(
    table: PublishedTable,
    dataset: str,
    out: Path,
    registry: Registry,
    root: str | None,
    seeds: int,
    overrides: tuple[str, ...],
) -> list[PlannedRow]:
    """Plan the runs of a table's rows on a data set.

    The names of the runs' folders contain a hash of the recipe, so that equal rows share a run,
    even if they measure different levels. Rows that can't be run are kept if figures are published
    for the data set. If a row replaces a table and the component's plugin, such as
    pytorch-metric-learning, is missing, the row has a fault.
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
                recipe = row_recipe(
                    table, row, dataset, registry, root=root, seed=seed, overrides=overrides
                )
                if recipe is None:
                    break
                folder = out / "runs" / f"{dataset}-{_key(recipe)}-seed-{recipe.training.seed}"
                jobs.append(
                    Job(f"{dataset}, {row.label}, seed {recipe.training.seed}", recipe, folder)
                )
        except UnknownName as error:
            if not row.replace:
                raise
            planned.append(PlannedRow(row, fault=str(error)))
        else:
            if jobs:
                planned.append(PlannedRow(row, jobs, row.levels.get(dataset, ())))
    return planned


def _key(recipe: Recipe) -> str:
    """Hash the keys of a recipe that affect the results."""
    document = recipe.to_dict()
    del document["checkpoints"], document["logging"]
    for name in ("workers", "device"):
        document["training"].pop(name, None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]


class Reproduced(NamedTuple):
    """The results of `reproduce`."""

    pages: list[Path]  # the Markdown files; the values are also in JSON files next to them
    faults: list[str]  # the errors of failed runs
    left_out: list[str]  # tables on missing data sets, with the reasons


def reproduce(
    names: Sequence[str],
    out: str | Path,
    *,
    data: str | Path | None = None,
    seeds: int = 1,
    processes: int = 1,
    executor: Executor | None = None,
    overrides: Sequence[str] = (),
    known: Mapping[str, Paper] | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> Reproduced:
    """Run tables of the papers on the available data sets, and write a page per paper.

    Raise DmlError if a name is unknown, a recipe is invalid, or data sets for all tables are
    missing, or StudyInterrupted on SIGTERM or Ctrl-C.

    Args:
        names: papers and tables, for example ``["ice/table-2", "rll"]``.
        out: the folder for runs and pages. Finished runs are kept, unfinished runs resume, and
            pages are replaced.
        data: the folder of the papers' data sets; by default, all tables are run on glyphs.
        seeds: number of runs per row.
        processes, executor: number of simultaneous runs; an executor to use instead of processes,
            see `run_all`.
        overrides: changes of all recipes, for example ``["training.steps=100"]``.
        known: the papers by name; default: the bundled papers.
        registry: provides the components; default: all installed ones.
        console: shows progress; default: none.
    """
    names, overrides, out = tuple(names), tuple(overrides), Path(out)
    known, console = known or papers(), console or Console(quiet=True)
    registry = registry or installed()
    planned = plan_tables(
        names, out, data=data, seeds=seeds, overrides=overrides, known=known, registry=registry
    )
    make_folder(out)
    jobs = planned.jobs()
    ended = run_all(
        jobs,
        processes=processes,
        executor=executor,
        registry=registry,
        console=console,
        on_end=show_ends(jobs, console),
    )
    outcomes = {outcome.job.folder: outcome for outcome in ended}
    settings = [*(["--data DIR"] if data is not None else []), f"--seeds {seeds}"]
    command = " ".join(
        ["dml reproduce", *names, *settings, *(f"--set {each}" for each in overrides)]
    )
    pages = []
    for paper, tables in choose(names, known).items():
        sections = [
            Section(
                name,
                known[paper].tables[name],
                dataset,
                [_measure(row, outcomes, registry) for row in group],
                list_incomparabilities(known[paper], dataset, overrides),
            )
            for (of, name, dataset), group in planned.groups.items()
            if of == paper
        ]
        if sections:
            complete = tables == list(known[paper].tables)
            page = out / f"{paper if complete else '-'.join([paper, *tables])}.md"
            contents = paper, known[paper], sections, seeds, command
            write_json(page.with_suffix(".json"), as_json(*contents))
            write_text(page, markdown(*contents))
            pages.append(page)
    faults = [f"{row.row.label}: {row.fault}" for row in planned.rows() if row.fault is not None]
    faults += [f"{o.job.name}: {o.fault}" for o in outcomes.values() if o.fault is not None]
    return Reproduced(pages, faults, planned.left_out)


def _measure(
    planned: PlannedRow, outcomes: Mapping[Path, Outcome], registry: Registry
) -> RowResult:
    """Collect the results of a row's runs."""
    values: dict[str, list[float]] = {}
    faults, seconds, queries = [planned.fault] if planned.fault else [], 0.0, 0
    for job in planned.jobs:
        outcome = outcomes[job.folder]
        seconds += outcome.seconds() or 0.0
        if outcome.fault is not None:
            faults.append(outcome.fault)
            continue
        metrics = _read_metrics(planned, outcome, registry)
        queries = int(metrics.get("n_queries", 0))
        for name, value in select_numbers(metrics).items():
            values.setdefault(name, []).append(value)
    folders = [job.folder.name for job in planned.jobs]
    return RowResult(planned.row, values, faults, queries, seconds, folders)


def _read_metrics(planned: PlannedRow, outcome: Outcome, registry: Registry) -> dict[str, Any]:
    """Read a run's metrics, or evaluate the stored embeddings with the row's evaluator or levels,
    if given.
    """
    evaluator, recipe = planned.row.evaluator, outcome.job.recipe
    if evaluator is None and not planned.levels:
        return outcome.metrics()
    embedded = Embedded.read(RunFolder(outcome.job.folder))
    if evaluator is None:
        built = build_evaluator(recipe, registry)
    else:
        options = recipe.evaluation.component()
        shared = {"metrics": options["metrics"]} if "metrics" in options else {}
        built = make_evaluator({"name": evaluator, **shared}, registry, recipe.training.seed)
    return evaluate_selected(built, embedded, recipe, planned.levels).to_dict()
