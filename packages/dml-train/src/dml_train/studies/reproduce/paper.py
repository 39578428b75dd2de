"""The tables of papers: rows, which change keys of a recipe, and the published figures.

A paper is a TOML file in ``tables/``. Figures are percentages as printed, or ``nan`` if not
printed.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dml_core import InvalidOption, Registry, UnknownName, nearest
from dml_train.measure.evaluate import check_levels
from dml_train.recipe.checking import parse
from dml_train.recipe.extending import remove
from dml_train.recipe.loading import assign, read, set_value
from dml_train.recipe.tables import Recipe

GLYPHS = "glyphs"  # the data set that need not be downloaded
COMPARED = ("recall@1", "map@r")  # measured in all runs, to compare the order of rows


class _Strict(BaseModel):
    """A table in a paper's file; unknown keys and values of wrong types are not allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Row(_Strict):
    """A row: changes of the table's recipe, and the published figures.

    The recipe is changed in this order: `replace` replaces whole tables, `drop` removes keys, then
    overrides come from `set` of the table, `set` of the row, and `on` of both for the data set. The
    row runs on glyphs, and on data sets with both a recipe and published figures.
    """

    label: str
    # Only compare the order with rows in the same group; ungrouped rows are compared with each
    # other.
    groups: list[str] = []
    recipes: dict[str, str] = {}  # by data set, instead of the table's recipes
    replace: dict[str, dict[str, Any]] = {}  # by dotted key
    drop: list[str] = []
    set: list[str] = []
    on: dict[str, list[str]] = {}
    evaluator: str | None = None  # measures the stored embeddings instead of the recipe's evaluator
    levels: dict[str, list[str]] = {}  # by data set: the stored levels to measure; default: all
    published_only: str = ""  # if not empty: why this toolkit can't run the row
    published: dict[str, list[float]] = {}  # by data set, in the order of the table's metrics


class PublishedTable(_Strict):
    """A table, or a figure in table form; raise ValueError if figures don't fit metrics, or a row
    lacks a recipe.
    """

    title: str
    expected: str  # the paper's conclusion from its figures
    # If not empty, the page also shows the table if all data sets are missing, with this in place
    # of measured figures.
    pending: str = ""
    recipes: dict[str, str] = {}  # by data set
    metrics: dict[str, list[str]]  # by data set: names of metrics, for example "recall@1"
    set: list[str] = []
    on: dict[str, list[str]] = {}
    notes: list[str] = []
    rows: Annotated[list[Row], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        for row in self.rows:
            if wrong := self._find_mistake(row):
                raise ValueError(f"row {row.label!r}: {wrong}")
        return self

    def _find_mistake(self, row: Row) -> str:
        for dataset, values in row.published.items():
            metrics = self.metrics.get(dataset, [])
            if len(values) != len(metrics):
                return (
                    f"{len(values)} figures for {dataset}, where the table has {len(metrics)} "
                    "metrics"
                )
            if not all(0 <= value <= 100 for value in drop_nan(values)):
                return f"{values} aren't percentages"
        names = {*self.recipes, *row.recipes}
        if not row.published_only:
            if not any(self.recipe_name(row, name) for name in names):
                return "no recipe for any of its data sets; expected one, or published_only"
            if unknown := row.levels.keys() - names:
                return f"levels on {', '.join(sorted(unknown))}, for which it has no recipe"
            return ""
        if not any(drop_nan(values) for values in row.published.values()):
            return "published_only without a published figure"
        changes = ("recipes", "replace", "drop", "set", "on", "evaluator", "levels")
        if given := [name for name in changes if getattr(row, name)]:
            return f"published_only and {', '.join(given)}; a row that isn't run has no recipe"
        return ""

    def datasets(self) -> list[str]:
        """List the data sets on which any row runs."""
        named = dict.fromkeys([*self.recipes, *(name for row in self.rows for name in row.recipes)])
        return [name for name in named if any(self.recipe_name(row, name) for row in self.rows)]

    def recipe_name(self, row: Row, dataset: str) -> str | None:
        """Return the name of a row's recipe on a data set; None if it doesn't run there."""
        if row.published_only or (dataset != GLYPHS and dataset not in row.published):
            return None
        return row.recipes.get(dataset, self.recipes.get(dataset))


class Paper(_Strict):
    """The tables of a paper, and how the figures were obtained."""

    title: str
    backbone: str
    selected_on_test: bool
    selection: str
    tables: dict[str, PublishedTable]


@cache
def papers() -> Mapping[str, Paper]:
    """Load all papers by name."""
    found = {}
    for entry in sorted((files(__package__) / "tables").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            document = tomllib.loads(entry.read_text(encoding="utf-8"))
            found[entry.name.removesuffix(".toml")] = Paper.model_validate(document)
    return found


def drop_nan(values: list[float]) -> list[float]:
    """Return the values that aren't NaN."""
    return [value for value in values if not math.isnan(value)]


def choose(names: tuple[str, ...], known: Mapping[str, Paper]) -> dict[str, list[str]]:
    """Resolve names of papers and tables to lists of tables by paper, in the given order.

    ``"ice"`` means all tables of a paper, ``"ice/table-2"`` or ``"ice/2"`` a single table. Raise
    UnknownName if a paper or table doesn't exist.
    """
    chosen: dict[str, list[str]] = {}
    for name in names:
        paper, _, table = name.partition("/")
        if paper not in known:
            raise UnknownName(
                f"no paper {paper!r}{nearest(paper, known)} papers: {', '.join(known)}"
            )
        tables = list(known[paper].tables)
        if not table:
            chosen[paper] = tables
            continue
        full = f"table-{table}" if table.isdigit() else table
        if full not in tables:
            raise UnknownName(
                f"{paper} does not contain {table!r}{nearest(full, tables)} it has: "
                f"{', '.join(tables)}"
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
    """Make the recipe of a row for a data set, or return None if the row doesn't run on the data
    set.

    `root` is the folder of the data set, if it needs any, `seed` is added to the recipe's seed, and
    `overrides` are applied after all other changes. Raise DmlError if the recipe is invalid.
    """
    name = table.recipe_name(row, dataset)
    if name is None:
        return None
    document, origin = read(name)
    try:
        for path, value in row.replace.items():
            set_value(document, path, value)
        for path in row.drop:
            remove(document, path)
        if root is not None:
            document["dataset"]["root"] = root
            # These can replace the recipe's metrics, since metrics don't affect training.
            names = list(dict.fromkeys([*table.metrics[dataset], *COMPARED]))
            document.setdefault("evaluation", {})["metrics"] = names
        of_dataset = (*table.on.get(dataset, []), *row.on.get(dataset, []))
        for override in (*table.set, *row.set, *of_dataset, *overrides):
            assign(document, override)
        training = document.setdefault("training", {})
        training["seed"] = training.get("seed", 0) + seed
        recipe = parse(document, registry, origin)
        stored = recipe.embedding.levels or recipe.backbone.get("levels") or []
        check_levels(row.levels.get(dataset, []), stored)
        return recipe
    except InvalidOption as error:
        raise InvalidOption(f"row {row.label!r} on {dataset}: {error}") from error
