"""Compare runs on one page: metrics side by side, paired tests, and differences in recipes and
retrievals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.measure.evaluate import Embedded
from dml_train.measure.listing import Metric
from dml_train.report.diagrams import draw_curves
from dml_train.report.finished import FinishedRun, MetricDifference, compare_metrics
from dml_train.report.rendering import MARKS, SHOWN, select_evenly, write_page
from dml_train.report.retrieval import NearestNeighbours
from dml_train.training.trackers import flatten_settings

SIGNIFICANT = 0.05  # a difference with a p-value below this makes a winner
_EXAMPLES = 6  # number of queries that only the first, or only the second, run gets right


class Column(NamedTuple):
    """A run in the table of metrics."""

    name: str
    run: FinishedRun
    metrics: Mapping[str, Metric]


class Disagreement(NamedTuple):
    """A query that only one run gets right: per run, the nearest item, and whether it is
    correct.
    """

    query: int
    first: tuple[int, bool]
    second: tuple[int, bool]


class RunComparison(NamedTuple):
    """A run compared with the first run."""

    name: str
    refusal: str  # why the runs can't be tested on the same queries; empty if they can
    differences: Sequence[MetricDifference] = ()  # paired tests of this run minus the first
    # The number of queries with a correct nearest item for these runs.
    both: int = 0
    neither: int = 0
    only_first: int = 0
    only_second: int = 0
    # Examples of queries that only the first run, or only this run, gets right.
    lost: Sequence[Disagreement] = ()
    gained: Sequence[Disagreement] = ()


def write_side_by_side(
    run_dirs: Sequence[Path | str], out: Path | str, registry: Registry | None = None
) -> Path:
    """Write a self-contained page that compares runs with the first run, and return the path.

    If the test items of two runs have identical labels in identical order, the queries are the
    same, and paired tests compare the runs. Names and pictures are taken from the first run's data
    set. Raise a `DmlError` if there are too few or too many runs, or a run isn't finished or is
    damaged.

    Args:
        run_dirs: the folders of 2 to 8 runs.
        out: the page to write; an existing file is replaced.
        registry: provides data sets and evaluators; default: all installed components.
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
    first = columns[0]
    test = first.run.test
    neighbours = None if test is None else NearestNeighbours.find(test.evaluator, test.embedded)
    comparisons = [_compare_pair(first, neighbours, other) for other in columns[1:]]
    baselines = [
        (column.name, baseline, values)
        for column in columns
        for baseline, values in column.run.baselines.by_name().items()
    ]
    return write_page(
        out,
        "side_by_side.html.j2",
        title=f"{len(runs)} runs side by side",
        columns=columns,
        metrics=list(dict.fromkeys(name for column in columns for name in column.metrics)),
        winners=_winners(columns, comparisons),
        significant=SIGNIFICANT,
        baselines=baselines,
        measured=[name for name in SHOWN if any(name in values for _, _, values in baselines)],
        comparisons=comparisons,
        curves=draw_curves({column.name: column.run.lines for column in columns}),
        settings=_settings(columns),
        queries=first.run.queries,
        gallery=first.run.gallery,
        absent=first.run.absent,
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the folders' names, with enough parents to be distinguished."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while len({p[-length:] for p in parts}) < len(parts):
        length += 1
    return ["/".join(p[-length:]) for p in parts]


def _winners(columns: Sequence[Column], comparisons: Sequence[RunComparison]) -> dict[str, str]:
    """Map metrics to the run that paired tests find better than all other runs, if there is one.

    Runs are only tested against the first run, so when there are more than 2, only the first can be
    the winner.
    """
    winners = {}
    for metric in columns[0].metrics:
        tests = [
            row.test
            for other in comparisons
            for row in other.differences
            if row.metric.name == metric
        ]
        if len(tests) < len(comparisons) or any(test.p_value >= SIGNIFICANT for test in tests):
            continue
        if all(test.difference < 0 for test in tests):
            winners[metric] = columns[0].name
        elif len(tests) == 1:
            winners[metric] = columns[1].name
    return winners


def _settings(columns: Sequence[Column]) -> dict[str, list[str]]:
    """Return the keys with values that differ between the recipes, with the values per run."""
    flat = [
        {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in flatten_settings(column.run.recipe.to_dict()).items()
        }
        for column in columns
    ]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = {key: [settings.get(key, "–") for settings in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _compare_pair(
    first: Column, neighbours: NearestNeighbours | None, other: Column
) -> RunComparison:
    one, two = first.run.test, other.run.test
    if one is None or two is None or neighbours is None:
        unused = first if one is None else other
        return RunComparison(
            other.name, f"{unused.name} didn't use its test split (evaluation.test = false)"
        )
    names = [column.run.recipe.dataset["name"] for column in (first, other)]
    if names[0] != names[1]:
        return RunComparison(other.name, f"the data sets differ: {names[0]} and {names[1]}")
    if not _same_items(one.embedded, two.embedded):
        return RunComparison(other.name, "the runs were measured on different items")
    found = neighbours, NearestNeighbours.find(two.evaluator, two.embedded)
    right_1Q, right_2Q = (each.right_QK[:, 0] for each in found)
    matched_Q = neighbours.matched_Q

    def some(chosen_Q: npt.NDArray[np.bool_]) -> list[Disagreement]:
        queries = np.flatnonzero(matched_Q & chosen_Q)
        return [
            Disagreement(
                q, *((int(each.nearest_QK[q, 0]), bool(each.right_QK[q, 0])) for each in found)
            )
            for q in queries[select_evenly(len(queries), _EXAMPLES)].tolist()
        ]

    return RunComparison(
        other.name,
        "",
        compare_metrics(
            one.evaluation,
            two.evaluation,
            list(first.metrics.values()),
            list(other.metrics.values()),
        ),
        both=int((matched_Q & right_1Q & right_2Q).sum()),
        neither=int((matched_Q & ~right_1Q & ~right_2Q).sum()),
        only_first=int((matched_Q & right_1Q & ~right_2Q).sum()),
        only_second=int((matched_Q & ~right_1Q & right_2Q).sum()),
        lost=some(right_1Q & ~right_2Q),
        gained=some(~right_1Q & right_2Q),
    )


def _same_items(one: Embedded, other: Embedded) -> bool:
    sides = [
        {"labels": each.labels, "gallery_labels": each.gallery_labels, **each.list_matches()}
        for each in (one, other)
    ]
    return sides[0].keys() == sides[1].keys() and all(
        np.array_equal(np.array(array), np.array(sides[1][name]))
        for name, array in sides[0].items()
    )
