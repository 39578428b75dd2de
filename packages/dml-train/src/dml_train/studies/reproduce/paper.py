"""A paper's tables: rows of recipes with some keys changed, and the published figures.

Each paper is a TOML file in ``tables/``. Figures there are percentages, as printed; ``nan`` where nothing is.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dml_core import InvalidOption, Registry, UnknownName, nearest
from dml_train.recipe.checking import parse
from dml_train.recipe.extending import remove, split_key
from dml_train.recipe.loading import assign, read
from dml_train.recipe.tables import Recipe

GLYPHS = "glyphs"  # the data set that needs no download
COMPARED = ("recall@1", "map@r")  # measured in every run, to compare the order of rows


class Part(BaseModel):
    """A table of a paper's file; unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Row(Part):
    """One row: how its recipe differs from the table's, and the published figures.

    Its recipe is the table's, changed in this order: `replace` replaces whole tables, `drop` removes keys, then the
    overrides of the table's `set`, the row's `set`, and of both `on` the data set. It runs on the data sets for which
    it has both a recipe and published figures, and on glyphs. A row with `published_only` has figures and no run.
    """

    label: str
    groups: list[
        str
    ] = []  # its order is compared with rows of the same group; without one, with all ungrouped
    recipes: dict[str, str] = {}  # by data set, instead of the table's
    replace: dict[str, dict[str, Any]] = {}  # by dotted key
    drop: list[str] = []
    set: list[str] = []
    on: dict[str, list[str]] = {}
    evaluator: str | None = None  # measures the stored embeddings, instead of the recipe's
    levels: dict[
        str, list[str]
    ] = {}  # by data set: the levels of the stored embeddings to measure; default: all
    published_only: str = ""  # why this toolkit can't run the row
    published: dict[str, list[float]] = {}  # by data set, in the order of the table's metrics


class PublishedTable(Part):
    """One table, or a figure read as one."""

    title: str
    expected: str  # what the paper's figures say
    recipes: dict[str, str] = {}  # by data set
    metrics: dict[str, list[str]]  # by data set: an evaluation's names, "recall@1"
    set: list[str] = []
    on: dict[str, list[str]] = {}
    notes: list[str] = []
    rows: Annotated[list[Row], Field(min_length=1)]

    def datasets(self) -> list[str]:
        """List the data sets on which some row runs."""
        named = dict.fromkeys([*self.recipes, *(name for row in self.rows for name in row.recipes)])
        return [name for name in named if any(self.recipe_name(row, name) for row in self.rows)]

    def recipe_name(self, row: Row, dataset: str) -> str | None:
        """Return the name of a row's recipe on a data set; None if it doesn't run there."""
        if row.published_only or (dataset != GLYPHS and dataset not in row.published):
            return None
        return row.recipes.get(dataset, self.recipes.get(dataset))


class Paper(Part):
    """A paper's tables, and how its figures were obtained."""

    title: str
    backbone: str
    selected_on_test: bool
    selection: str
    tables: dict[str, PublishedTable]


@cache
def papers() -> Mapping[str, Paper]:
    """Load all papers by name, and check their figures against their metrics.

    Raises:
        ValueError: as `check`: a fault of this package.
    """
    found = {}
    tables = files(__package__) / "tables"
    for entry in sorted(tables.iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(".toml"):
            continue
        paper = Paper.model_validate(tomllib.loads(entry.read_text(encoding="utf-8")))
        for name, table in paper.tables.items():
            check(table, f"{entry.name}, {name}")
        found[entry.name.removesuffix(".toml")] = paper
    return found


def check(table: PublishedTable, where: str) -> None:
    """Check that each row's published figures fit its table's metrics, and that it either runs or says why not.

    Raises:
        ValueError: naming the row.
    """
    for row in table.rows:
        _check_figures(table, row, f"{where}, row {row.label!r}")
        _check_run(table, row, f"{where}, row {row.label!r}")


def _check_figures(table: PublishedTable, row: Row, where: str) -> None:
    for dataset, values in row.published.items():
        metrics = table.metrics.get(dataset, [])
        if len(values) != len(metrics):
            raise ValueError(
                f"{where}: {len(values)} figures for {dataset}, where the table has {len(metrics)} metrics"
            )
        if any(value > 100 or value < 0 for value in values if not math.isnan(value)):
            raise ValueError(f"{where}: {values} aren't percentages")


def _check_run(table: PublishedTable, row: Row, where: str) -> None:
    names = {*table.recipes, *row.recipes}
    if not row.published_only:
        if not any(table.recipe_name(row, name) for name in names):
            raise ValueError(f"{where}: no recipe for any of its data sets; expected one, or published_only")
        if unknown := row.levels.keys() - names:
            raise ValueError(f"{where}: levels on {', '.join(sorted(unknown))}, for which it has no recipe")
        return
    if not any(not math.isnan(value) for values in row.published.values() for value in values):
        raise ValueError(f"{where}: published_only without a published figure")
    changes = ("recipes", "replace", "drop", "set", "on", "evaluator", "levels")
    if given := [name for name in changes if getattr(row, name)]:
        raise ValueError(
            f"{where}: published_only and {', '.join(given)}; a row that isn't run has no recipe"
        )


def choose(names: tuple[str, ...], known: Mapping[str, Paper]) -> dict[str, list[str]]:
    """Resolve names of papers and tables to tables by paper, in the order given.

    Args:
        names: ``"ice"`` for all tables of a paper, ``"ice/table-2"`` for one; ``"ice/2"`` is short for that.
        known: the papers.

    Raises:
        UnknownName: for an unknown name, with the nearest.
    """
    chosen: dict[str, list[str]] = {}
    for name in names:
        paper, _, table = name.partition("/")
        if paper not in known:
            raise UnknownName(f"no paper {paper!r}{nearest(paper, known)} papers: {', '.join(known)}")
        tables = list(known[paper].tables)
        if not table:
            chosen[paper] = tables
            continue
        full = f"table-{table}" if table.isdigit() else table
        if full not in tables:
            raise UnknownName(
                f"{paper} has no table {table!r}{nearest(full, tables)} it has: {', '.join(tables)}"
            )
        if full not in chosen.setdefault(paper, []):
            chosen[paper].append(full)
    return chosen


def row_recipe(
    table: PublishedTable,
    row: Row,
    dataset: str,
    registry: Registry,
    *,
    root: str | None = None,
    seed: int = 0,
    overrides: tuple[str, ...] = (),
) -> Recipe | None:
    """Make the recipe of a row on a data set; None if the row doesn't run on it.

    Args:
        table, row: the table and its row.
        dataset: the data set's name.
        registry: checks the recipe.
        root: the data set's folder; None if it needs none.
        seed: added to the recipe's.
        overrides: further changes, after all others.

    Raises:
        DmlError: if the recipe is invalid.
    """
    name = table.recipe_name(row, dataset)
    if name is None:
        return None
    document, origin = read(name)
    try:
        for path, value in row.replace.items():
            *parents, last = split_key(path)
            owner = document
            for parent in parents:
                owner = owner[parent]
            owner[last] = value
        for path in row.drop:
            remove(document, path)
        if root is not None:
            document["dataset"]["root"] = root
            # Other metrics don't affect training.
            names = list(dict.fromkeys([*table.metrics[dataset], *COMPARED]))
            document.setdefault("evaluation", {})["metrics"] = names
        of_dataset = (*table.on.get(dataset, []), *row.on.get(dataset, []))
        for override in (*table.set, *row.set, *of_dataset, *overrides):
            assign(document, override)
        training = document.setdefault("training", {})
        training["seed"] = training.get("seed", 0) + seed
        recipe = parse(document, registry, origin)
        if dataset in row.levels:
            _check_levels(row.levels[dataset], recipe)
        return recipe
    except InvalidOption as error:
        raise InvalidOption(f"row {row.label!r} on {dataset}: {error}") from error


def _check_levels(levels: list[str], recipe: Recipe) -> None:
    stored = recipe.embedding.levels or recipe.backbone.get("levels") or []
    for level in levels:
        if level not in stored:
            raise InvalidOption(
                f"no level {level!r} to measure{nearest(level, stored)} "
                f"levels of the embedding: {', '.join(stored) or 'it has one only'}"
            )
