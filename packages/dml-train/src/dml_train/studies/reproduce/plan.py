"""Planning tables: which runs make which row, on which data set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dml_core import DmlError, Registry, UnknownName
from dml_core import registry as installed
from dml_train.recipe.tables import Recipe
from dml_train.studies.jobs import Job
from dml_train.studies.reproduce.paper import GLYPHS, Paper, PublishedTable, Row, choose, papers, row_recipe


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row on a data set, and its runs, one a seed."""

    row: Row
    jobs: Sequence[Job] = ()  # none if only its published figures are shown
    levels: Sequence[str] = ()  # the levels of the stored embeddings to measure; empty: all
    fault: str | None = None  # why it can't be planned; None if it can


@dataclass(frozen=True, slots=True)
class PlannedTables:
    """The runs of some tables."""

    # The rows, by paper, table and data set (None: no row of the table can be run).
    groups: Mapping[tuple[str, str, str | None], Sequence[PlannedRow]]
    left_out: list[str]  # tables on missing data sets, with the reasons

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
    tables = [(paper, name) for paper, names in choose(tuple(names), known).items() for name in names]
    wanted = {dataset for paper, name in tables for dataset in known[paper].tables[name].datasets()}
    roots, missing = _find_datasets(sorted(wanted), Path(data) if data else None, registry)
    groups: dict[tuple[str, str, str | None], list[PlannedRow]] = {}
    left_out = []
    for paper, name in tables:
        table = known[paper].tables[name]
        datasets = table.datasets()
        if not datasets:
            groups[paper, name, None] = [PlannedRow(row) for row in table.rows]
        for dataset in datasets:
            if dataset in roots:
                root = roots[dataset]
                groups[paper, name, dataset] = _plan_rows(
                    table, dataset, Path(out), registry, root, seeds, tuple(overrides)
                )
            elif dataset in missing and (data is not None or GLYPHS not in datasets):
                left_out.append(f"{paper}/{name} on {dataset}: {missing[dataset]}")
    if not any(groups.values()):
        raise DmlError(
            "no data set of these tables was found:\n  " + "\n  ".join(left_out), arguments=("data",)
        )
    return PlannedTables(groups, left_out)


def _find_datasets(
    names: Iterable[str], data: Path | None, registry: Registry
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Find the usable data sets: without `data`, only `GLYPHS`; otherwise those in its subfolders, or in `data` itself.

    Returns:
        The folder of each usable data set (None: it needs none), and the reason for each other one.
    """
    found: dict[str, str | None] = {}
    missing: dict[str, str] = {}
    for name in names:
        if name == GLYPHS:
            if data is None:
                found[name] = None
        elif data is None:
            missing[name] = "the folder of the data sets wasn't given"
        else:
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

    A hash of the resolved recipe names a run's folder, so that equal rows of any table share it, and so do rows that
    measure different levels of one network. Rows that can't be run stay, without runs; rows that have neither a run
    nor a published figure on the data set are omitted.

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
                folder = out / "runs" / f"{dataset}-{_key(recipe)}-seed-{recipe.training.seed}"
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
