"""Several runs on one page: figures side by side, paired tests, what differs in their recipes and what they find."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.files import write_atomically
from dml_train.measure.evaluate import Embedded
from dml_train.report.figures import MARKS, curves
from dml_train.report.finished import FinishedRun, Metric
from dml_train.report.paired import Difference, differences
from dml_train.report.retrieval import Search
from dml_train.report.spread import evenly
from dml_train.report.template import render

_EXAMPLES = 6  # queries of either kind: found by one run alone


@dataclass(frozen=True, slots=True)
class Column:
    """One run of the table of figures."""

    name: str
    run: FinishedRun
    metrics: Mapping[str, Metric]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A query whose nearest item is right for one of two runs: for each, that item and whether it is right."""

    query: int
    first: tuple[int, bool]
    second: tuple[int, bool]


@dataclass(frozen=True, slots=True)
class Against:
    """A run set against the first one.

    Args:
        name: the run's.
        refusal: why the two can't be tested on the same queries; empty if they can, and then all else is there.
        differences: the paired tests, this run less the first.
        both, neither, only_first, only_second: queries whose nearest item is right for whom.
        lost, gained: some of the queries that only the first run, or only this one, gets right.
    """

    name: str
    refusal: str
    differences: Sequence[Difference] = ()
    both: int = 0
    neither: int = 0
    only_first: int = 0
    only_second: int = 0
    lost: Sequence[Disagreement] = ()
    gained: Sequence[Disagreement] = ()


def write_side_by_side(run_dirs: Sequence[Path], out: Path, registry: Registry | None = None) -> Path:
    """Write one page, as self-contained as a run's own report, that compares runs; each is set against the first.

    Runs whose test items have the same labels in the same order are taken to be measured on the same queries, and
    tested in pairs. Names and pictures are those of the first run's data set.

    Args:
        run_dirs: the runs' folders, from two to eight.
        out: the page. One that was there is replaced.
        registry: where data sets and evaluators are found; default: all that is installed.

    Returns:
        `out`.

    Raises:
        DmlError: too few or too many runs, or any that has not ended or is damaged.
    """
    registry = registry or installed()
    if not 2 <= len(run_dirs) <= len(MARKS):
        raise DmlError(f"{len(run_dirs)} runs were given to compare; expected 2 to {len(MARKS)}")
    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise DmlError("a run was given twice; expected runs that differ")
    runs = [FinishedRun.read(path, registry) for path in run_dirs]
    columns = [
        Column(name, run, {metric.name: metric for metric in run.metrics()})
        for name, run in zip(_names(run_dirs), runs, strict=True)
    ]
    first, *others = columns
    page = render(
        "side_by_side.html.j2",
        title=f"{len(runs)} runs side by side",
        columns=columns,
        metrics=list(dict.fromkeys(name for column in columns for name in column.metrics)),
        best=_best(columns),
        against=_against(first, others),
        curves=curves({column.name: column.run.lines for column in columns}),
        settings=_settings(columns),
        queries=first.run.queries,
        gallery=first.run.gallery,
        absent=first.run.absent,
    )
    write_atomically(out, lambda file: file.write(page))
    return out


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many of their parents as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while len({p[-length:] for p in parts}) < len(parts):
        length += 1
    return ["/".join(p[-length:]) for p in parts]


def _best(columns: Sequence[Column]) -> dict[str, float]:
    """The highest value of each metric that more than one run was measured by."""
    values: dict[str, list[float]] = {}
    for column in columns:
        for name, metric in column.metrics.items():
            values.setdefault(name, []).append(metric.value)
    return {name: max(found) for name, found in values.items() if len(found) > 1}


def _settings(columns: Sequence[Column]) -> dict[str, list[str]]:
    """The keys of the recipes that aren't alike in all runs, with each run's value."""
    flat = [_flat(column.run.recipe.to_dict()) for column in columns]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = {key: [settings.get(key, "–") for settings in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def _against(first: Column, others: Sequence[Column]) -> list[Against]:
    """Every other run against the first."""
    if first.run.measured is None:
        return [Against(other.name, _left_alone(first)) for other in others]
    search = Search.of(first.run.measured.evaluator, first.run.measured.embedded)
    return [_pair(first, search, other) for other in others]


def _pair(first: Column, search: Search, other: Column) -> Against:
    mine, theirs = first.run.measured, other.run.measured
    assert mine is not None
    if theirs is None:
        return Against(other.name, _left_alone(other))
    names = [column.run.recipe.dataset["name"] for column in (first, other)]
    if names[0] != names[1]:
        return Against(other.name, f"the data sets differ: {names[0]} and {names[1]}")
    if not _same_items(mine.embedded, theirs.embedded):
        return Against(other.name, "the two were measured on different items")
    found = Search.of(theirs.evaluator, theirs.embedded)
    ours_Q, theirs_Q = search.right_QK[:, 0], found.right_QK[:, 0]
    matched_Q = search.matched_Q

    def some(chosen_Q: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Disagreement]:
        queries = np.flatnonzero(matched_Q & chosen_Q)
        return [
            Disagreement(
                q,
                (int(search.nearest_QK[q, 0]), bool(ours_Q[q])),
                (int(found.nearest_QK[q, 0]), bool(theirs_Q[q])),
            )
            for q in queries[evenly(len(queries), _EXAMPLES)].tolist()
        ]

    return Against(
        other.name,
        "",
        differences(
            mine.evaluation, theirs.evaluation, list(first.metrics.values()), list(other.metrics.values())
        ),
        both=int((matched_Q & ours_Q & theirs_Q).sum()),
        neither=int((matched_Q & ~ours_Q & ~theirs_Q).sum()),
        only_first=int((matched_Q & ours_Q & ~theirs_Q).sum()),
        only_second=int((matched_Q & ~ours_Q & theirs_Q).sum()),
        lost=some(ours_Q & ~theirs_Q),
        gained=some(~ours_Q & theirs_Q),
    )


def _same_items(one: Embedded, other: Embedded) -> bool:
    if (one.gallery_labels is None) != (other.gallery_labels is None):
        return False
    pairs = [(one.labels, other.labels), (one.gallery_labels, other.gallery_labels)]
    return all(np.array_equal(a, b) for a, b in pairs if a is not None and b is not None)


def _left_alone(column: Column) -> str:
    return f"{column.name} left its test split alone (evaluation.test = false)"
