"""`dml reproduce`: run tables by their names, measure their rows, and write their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from dml_core import Registry
from dml_core import registry as installed
from dml_train.files import WriteRefused, write_atomically, write_json
from dml_train.measure.evaluate import Embedded, build_evaluator, evaluate, make_evaluator, select_numbers
from dml_train.measure.levels import select_levels
from dml_train.run_folder import RunFolder
from dml_train.studies.jobs import Outcome
from dml_train.studies.reproduce.page import RowResult, Section, as_json, list_incomparabilities, markdown
from dml_train.studies.reproduce.paper import Paper, choose, papers
from dml_train.studies.reproduce.plan import PlannedRow, plan_tables
from dml_train.studies.runs import Executor, run_all, show_ends


class Reproduced(NamedTuple):
    """The results of `reproduce`."""

    pages: list[Path]  # the Markdown files; beside each is a JSON file with the same values
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

    Args:
        names: papers and tables: ``["ice/table-2", "rll"]``.
        out: receives runs and pages. Finished runs are kept, unfinished ones resume; pages are replaced.
        data: the folder of the papers' data sets; None: every table on glyphs.
        seeds: runs per row.
        processes: runs at a time.
        executor: does the runs, instead of processes of this machine; see `run_all`.
        overrides: changes of every recipe: ``["training.steps=100"]``.
        known: the papers by name; default: the bundled ones.
        registry: provides the components; default: those of all installed plugins.
        console: shows progress; default: none.

    Raises:
        DmlError: an unknown name, an invalid recipe, or no data set for any of the tables.
        StudyInterrupted: as `run_all`.
    """
    names, overrides, out = tuple(names), tuple(overrides), Path(out)
    known, console = known or papers(), console or Console(quiet=True)
    registry = registry or installed()
    planned = plan_tables(
        names, out, data=data, seeds=seeds, overrides=overrides, known=known, registry=registry
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteRefused(f"can't make the folder {out}: {error.strerror}") from error
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
    command = " ".join(["dml reproduce", *names, *settings, *(f"--set {each}" for each in overrides)])
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
            _write(page, paper, known[paper], sections, seeds, command)
            pages.append(page)
    faults = [f"{row.row.label}: {row.fault}" for row in planned.rows() if row.fault is not None]
    faults += [f"{o.job.name}: {o.fault}" for o in outcomes.values() if o.fault is not None]
    return Reproduced(pages, faults, planned.left_out)


def _measure(planned: PlannedRow, outcomes: Mapping[Path, Outcome], registry: Registry) -> RowResult:
    """Collect the results of a row's runs, by its evaluator and on its levels."""
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


def _write(
    path: Path, name: str, paper: Paper, sections: Sequence[Section], seeds: int, command: str
) -> None:
    write_json(path.with_suffix(".json"), as_json(name, paper, sections, seeds, command))
    text = markdown(name, paper, sections, seeds, command)
    write_atomically(path, lambda file: file.write(text.encode()))
