"""`dml reproduce`: run tables by their names and write their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.files import WriteRefused, write_atomically, write_json
from dml_train.studies.jobs import Job, Outcome
from dml_train.studies.reproduce.page import Section, as_json, markdown
from dml_train.studies.reproduce.paper import GLYPHS, Paper, choose, papers
from dml_train.studies.reproduce.reproduction import (
    PlannedRow,
    find_datasets,
    list_incomparabilities,
    measure,
    plan,
    run_planned,
)
from dml_train.studies.runs import Executor


@dataclass(frozen=True, slots=True)
class Reproduced:
    """The results of `reproduce`.

    Args:
        pages: the Markdown files; beside each is a JSON file with the same values.
        faults: the errors of failed runs.
        left_out: tables on missing data sets, with the reasons.
    """

    pages: list[Path]
    faults: list[str]
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class PlannedTables:
    """The runs of some tables.

    Args:
        chosen: the tables of each paper.
        groups: the rows, by paper, table and data set.
        left_out: tables on missing data sets, with the reasons.
    """

    chosen: Mapping[str, Sequence[str]]
    groups: Mapping[tuple[str, str, str | None], Sequence[PlannedRow]]
    left_out: list[str]

    def rows(self) -> list[PlannedRow]:
        """Return all rows."""
        return [row for group in self.groups.values() for row in group]

    def jobs(self) -> list[Job]:
        """Return all runs; rows may share some."""
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
    """Plan the runs of `reproduce`; the arguments and errors are the same."""
    known, registry = known or papers(), registry or installed()
    chosen = choose(tuple(names), known)
    wanted = {
        d for paper, tables in chosen.items() for t in tables for d in known[paper].tables[t].datasets()
    }
    roots, missing = find_datasets(sorted(wanted), Path(data) if data else None, registry)
    groups: dict[tuple[str, str, str | None], list[PlannedRow]] = {}
    left_out = []
    for paper, tables in chosen.items():
        for name in tables:
            table = known[paper].tables[name]
            if not table.datasets():
                groups[paper, name, None] = [PlannedRow(row) for row in table.rows]
            for dataset in table.datasets():
                if dataset in roots:
                    groups[paper, name, dataset] = plan(
                        table,
                        dataset,
                        Path(out),
                        registry,
                        root=roots[dataset],
                        seeds=seeds,
                        overrides=tuple(overrides),
                    )
                elif dataset in missing and (data is not None or GLYPHS not in table.datasets()):
                    left_out.append(f"{paper}/{name} on {dataset}: {missing[dataset]}")
    if not any(groups.values()):
        raise DmlError(
            "no data set of these tables was found:\n  " + "\n  ".join(left_out), arguments=("data",)
        )
    return PlannedTables(chosen, groups, left_out)


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
    rows = planned.rows()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteRefused(f"can't make the folder {out}: {error.strerror}") from error

    total = len({job.folder for row in rows for job in row.jobs})
    done = 0

    def show(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if outcome.fault is None:
            text = f"R@1 {outcome.metrics().get('recall@1', float('nan')):.3f}"
            text += f" ({seconds:.0f} s)" if (seconds := outcome.seconds()) is not None else ""
        else:
            text = outcome.fault
        console.print(
            f"[{done}/{total}] {outcome.job.name}: {text}", markup=False, highlight=False, soft_wrap=True
        )

    outcomes = run_planned(
        rows, processes=processes, executor=executor, registry=registry, console=console, on_end=show
    )
    pages = []
    for paper, tables in planned.chosen.items():
        sections = [
            Section(
                name,
                known[paper].tables[name],
                dataset,
                [measure(row, outcomes, registry) for row in group],
                list_incomparabilities(known[paper], dataset, overrides),
            )
            for (of, name, dataset), group in planned.groups.items()
            if of == paper
        ]
        if sections:
            complete = tables == list(known[paper].tables)
            stem = paper if complete else "-".join([paper, *tables])
            pages.append(
                _write(
                    out / f"{stem}.md",
                    paper,
                    known[paper],
                    sections,
                    seeds,
                    _command(names, data is not None, seeds, overrides),
                )
            )
    faults = [f"{row.row.label}: {row.fault}" for row in rows if row.fault is not None]
    faults += [f"{o.job.name}: {o.fault}" for o in outcomes.values() if o.fault is not None]
    return Reproduced(pages, faults, planned.left_out)


def _command(names: tuple[str, ...], data: bool, seeds: int, overrides: tuple[str, ...]) -> str:
    parts = ["dml reproduce", *names]
    parts += ["--data DIR"] if data else []
    parts += [f"--seeds {seeds}", *(f"--set {override}" for override in overrides)]
    return " ".join(parts)


def _write(path: Path, name: str, paper: Paper, sections: list[Section], seeds: int, command: str) -> Path:
    write_json(path.with_suffix(".json"), as_json(name, paper, sections, seeds, command))
    text = markdown(name, paper, sections, seeds, command)
    write_atomically(path, lambda file: file.write(text.encode()))
    return path
