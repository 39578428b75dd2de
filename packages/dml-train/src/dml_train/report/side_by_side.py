"""Several runs on one page: metrics side by side, paired tests, and differences in recipes and retrievals."""

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
from dml_train.measure.listing import Metric
from dml_train.report.figures import MARKS, draw_curves
from dml_train.report.finished import FinishedRun
from dml_train.report.paired import MetricDifference, compare_metrics
from dml_train.report.retrieval import NearestNeighbours
from dml_train.report.selection import select_evenly
from dml_train.report.template import SHOWN, render

SIGNIFICANT = 0.05  # p below which a difference makes a winner
_EXAMPLES = 6  # queries of each kind: right for one run only


@dataclass(frozen=True, slots=True)
class Column:
    """One run in the table of metrics."""

    name: str
    run: FinishedRun
    metrics: Mapping[str, Metric]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A query whose nearest item is right for one of two runs only: for each run, that item and whether it is right."""

    query: int
    first: tuple[int, bool]
    second: tuple[int, bool]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run compared with the first one.

    Args:
        name: the run's name.
        refusal: why the two can't be tested on the same queries; empty if they can.
        differences: the paired tests, this run minus the first.
        both, neither, only_first, only_second: number of queries whose nearest item is right for these runs.
        lost, gained: examples of queries that only the first run, or only this one, gets right.
    """

    name: str
    refusal: str
    differences: Sequence[MetricDifference] = ()
    both: int = 0
    neither: int = 0
    only_first: int = 0
    only_second: int = 0
    lost: Sequence[Disagreement] = ()
    gained: Sequence[Disagreement] = ()


def write_side_by_side(
    run_dirs: Sequence[Path | str], out: Path | str, registry: Registry | None = None
) -> Path:
    """Write one page, as self-contained as a run's own report, that compares runs with the first one.

    Runs whose test items have the same labels in the same order count as measured on the same queries, and are tested
    in pairs. Names and pictures are those of the first run's data set.

    Args:
        run_dirs: the runs' folders, from two to eight.
        out: the page. An existing one is replaced.
        registry: provides data sets and evaluators; default: all installed ones.

    Returns:
        `out`.

    Raises:
        DmlError: too few or too many runs, or a run that isn't finished or is damaged.
    """
    registry, out = registry or installed(), Path(out)
    paths = [Path(run_dir) for run_dir in run_dirs]
    if not 2 <= len(paths) <= len(MARKS):
        raise DmlError(f"{len(paths)} runs were given to compare; expected 2 to {len(MARKS)}")
    if len({path.resolve() for path in paths}) < len(paths):
        raise DmlError("a run was given twice; expected different runs")
    runs = [FinishedRun.read(path, registry) for path in paths]
    columns = [
        Column(name, run, {metric.name: metric for metric in run.metrics()})
        for name, run in zip(_names(paths), runs, strict=True)
    ]
    first, *others = columns
    comparisons = _compare(first, others)
    beside = [
        (column.name, baseline, values)
        for column in columns
        for baseline, values in column.run.baselines.by_name().items()
    ]
    page = render(
        "side_by_side.html.j2",
        title=f"{len(runs)} runs side by side",
        columns=columns,
        metrics=list(dict.fromkeys(name for column in columns for name in column.metrics)),
        winners=_winners(columns, comparisons),
        significant=SIGNIFICANT,
        beside=beside,
        shown=[name for name in SHOWN if any(name in values for _, _, values in beside)],
        comparisons=comparisons,
        curves=draw_curves({column.name: column.run.lines for column in columns}),
        settings=_settings(columns),
        queries=first.run.queries,
        gallery=first.run.gallery,
        absent=first.run.absent,
    )
    write_atomically(out, lambda file: file.write(page))
    return out


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the folders' names, with enough parents to distinguish them."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while len({p[-length:] for p in parts}) < len(parts):
        length += 1
    return ["/".join(p[-length:]) for p in parts]


def _winners(columns: Sequence[Column], comparisons: Sequence[RunComparison]) -> dict[str, str]:
    """Name, for each metric, the run that a paired test finds better than every other run, if there is one.

    Runs are tested against the first alone, so of three or more runs only the first can be the winner.
    """
    winners = {}
    for metric in columns[0].metrics:
        tests = [{row.name: row for row in other.differences}.get(metric) for other in comparisons]
        tested = [row for row in tests if row is not None and row.p_value < SIGNIFICANT]
        if len(tested) < len(tests):
            continue
        if all(row.difference < 0 for row in tested):
            winners[metric] = columns[0].name
        elif len(tested) == 1:
            winners[metric] = columns[1].name
    return winners


def _settings(columns: Sequence[Column]) -> dict[str, list[str]]:
    """Return the recipes' keys with different values, with each run's value."""
    flat = [_flat(column.run.recipe.to_dict()) for column in columns]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = {key: [settings.get(key, "–") for settings in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _compare(first: Column, others: Sequence[Column]) -> list[RunComparison]:
    """Compare every other run with the first."""
    if first.run.test is None:
        return [RunComparison(other.name, _without_test(first)) for other in others]
    neighbours = NearestNeighbours.find(first.run.test.evaluator, first.run.test.embedded)
    return [_compare_pair(first, neighbours, other) for other in others]


def _compare_pair(first: Column, neighbours: NearestNeighbours, other: Column) -> RunComparison:
    first_test, other_test = first.run.test, other.run.test
    assert first_test is not None
    if other_test is None:
        return RunComparison(other.name, _without_test(other))
    names = [column.run.recipe.dataset["name"] for column in (first, other)]
    if names[0] != names[1]:
        return RunComparison(other.name, f"the data sets differ: {names[0]} and {names[1]}")
    if not _same_items(first_test.embedded, other_test.embedded):
        return RunComparison(other.name, "the two were measured on different items")
    other_neighbours = NearestNeighbours.find(other_test.evaluator, other_test.embedded)
    first_Q, other_Q = neighbours.right_QK[:, 0], other_neighbours.right_QK[:, 0]
    matched_Q = neighbours.matched_Q

    def some(chosen_Q: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Disagreement]:
        queries = np.flatnonzero(matched_Q & chosen_Q)
        return [
            Disagreement(
                q,
                (int(neighbours.nearest_QK[q, 0]), bool(first_Q[q])),
                (int(other_neighbours.nearest_QK[q, 0]), bool(other_Q[q])),
            )
            for q in queries[select_evenly(len(queries), _EXAMPLES)].tolist()
        ]

    return RunComparison(
        other.name,
        "",
        compare_metrics(
            first_test.evaluation,
            other_test.evaluation,
            list(first.metrics.values()),
            list(other.metrics.values()),
        ),
        both=int((matched_Q & first_Q & other_Q).sum()),
        neither=int((matched_Q & ~first_Q & ~other_Q).sum()),
        only_first=int((matched_Q & first_Q & ~other_Q).sum()),
        only_second=int((matched_Q & ~first_Q & other_Q).sum()),
        lost=some(first_Q & ~other_Q),
        gained=some(~first_Q & other_Q),
    )


def _same_items(one: Embedded, other: Embedded) -> bool:
    sides = [
        {"labels": each.labels, "gallery_labels": each.gallery_labels, **each.list_matches()}
        for each in (one, other)
    ]
    return sides[0].keys() == sides[1].keys() and all(
        np.array_equal(np.array(array), np.array(sides[1][name])) for name, array in sides[0].items()
    )


def _without_test(column: Column) -> str:
    return f"{column.name} didn't use its test split (evaluation.test = false)"
