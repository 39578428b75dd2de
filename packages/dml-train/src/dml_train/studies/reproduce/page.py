"""Write tables that compare published and measured figures, as Markdown and JSON."""

from __future__ import annotations

import itertools
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dml_core import metric_title
from dml_train import __version__
from dml_train.measure.intervals import Interval, Spread, pool_spread, share_interval
from dml_train.studies.reproduce.paper import COMPARED, GLYPHS, Paper, PublishedTable, Row, drop_nan

_ON_GLYPHS = ["recall@1", "recall@10", "recall@100"]
NAMES = {"sop": "SOP", "cub": "CUB", "cars196": "CARS196", "in-shop": "In-shop", GLYPHS: "glyphs"}


class Standing(NamedTuple):
    """A row's published figure and measured values, to compare the order of rows with
    `compare_order`.
    """

    groups: frozenset[str]
    published: float
    measured: Sequence[float]  # a value per seed


class Order(NamedTuple):
    """Numbers of pairs of rows with different published figures."""

    pairs: int
    same: int  # pairs with measured means in the published order
    # Pairs in the same or opposite order, if the difference's 95 % interval excludes 0; None with a
    # single seed.
    surely_same: int | None
    surely_opposite: int | None


def compare_order(rows: Sequence[Standing]) -> Order:
    """Compare the measured order of rows with the published order, except rows with published
    figure NaN.

    Rows are compared if they share a group, or neither names a group. All rows need equal numbers
    of measured values. The interval of a difference is Student's, with the spread of runs pooled
    over all rows. For pairs with zero true difference, expect 2.5 % to be surely opposite.
    """
    pairs = same = surely_same = surely_opposite = 0
    spread = pool_spread([row.measured for row in rows])
    for first, second in itertools.combinations(rows, 2):
        unrelated = (first.groups or second.groups) and not first.groups & second.groups
        published = first.published - second.published
        if unrelated or math.isnan(published) or published == 0:
            continue
        pairs += 1
        difference = statistics.fmean(first.measured) - statistics.fmean(second.measured)
        same += difference * published > 0
        if spread is not None and abs(difference) > spread.half_width_of_difference(
            len(first.measured)
        ):
            surely_same += difference * published > 0
            surely_opposite += difference * published < 0
    if spread is None:
        return Order(pairs, same, None, None)
    return Order(pairs, same, surely_same, surely_opposite)


@dataclass(frozen=True, slots=True)
class RowResult:
    """The results of a row's runs."""

    row: Row
    values: Mapping[str, Sequence[float]]  # by metric, a value in [0, 1] per finished run
    faults: Sequence[str]  # the errors of failed runs, or why runs could not be planned
    queries: int  # number of queries per evaluation
    seconds: float  # processor time of all runs, including runs that are shared with other rows
    folders: Sequence[str]  # names of the runs' folders


@dataclass(frozen=True, slots=True)
class Section:
    """The results of a table on a data set."""

    name: str  # "table-2"
    table: PublishedTable
    dataset: str | None  # None if the table's rows can't be run
    rows: Sequence[RowResult]
    reasons: Sequence[str]  # why the figures can't be compared; empty if they can

    def metrics(self) -> list[str]:
        """List the measured metrics to show: the metrics of the table, and MAP@R."""
        if self.dataset is None:
            return []
        return list(dict.fromkeys([*self.table.metrics.get(self.dataset, _ON_GLYPHS), "map@r"]))

    def published(self) -> list[tuple[str, int, str]]:
        """List the columns of published figures: data set, index of the metric, metric."""
        shows_all = self.dataset is None or self.dataset == GLYPHS
        datasets = [name for name in self.table.metrics if shows_all or name == self.dataset]
        return [
            (name, i, metric)
            for name in datasets
            for i, metric in enumerate(self.table.metrics[name])
        ]

    def orders(self) -> dict[tuple[str, str, str], Order]:
        """Compare the order of the rows, by published data set, published metric, and measured
        metric.
        """
        found = {}
        complete = max((len(v) for row in self.rows for v in row.values.values()), default=0)
        for dataset, place, metric in self.published():
            if place > 0 and metric != "recall@1":
                continue
            for measured in COMPARED:
                standings = [
                    Standing(
                        frozenset(row.row.groups),
                        row.row.published[dataset][place],
                        row.values[measured],
                    )
                    for row in self.rows
                    if dataset in row.row.published
                    and len(row.values.get(measured, ())) == complete > 0
                ]
                if (order := compare_order(standings)).pairs:
                    found[dataset, metric, measured] = order
        return found


def list_incomparabilities(
    paper: Paper, dataset: str | None, overrides: Sequence[str] = ()
) -> list[str]:
    """List why published figures can't be compared with figures measured on a data set, if any."""
    if dataset is None:
        return []
    reasons = []
    if dataset == GLYPHS:
        reasons.append(
            "measured on glyphs (rendered characters) with a small network trained from scratch, "
            f"published on photographs with {paper.backbone}: only the order of the rows can be "
            "compared"
        )
    if paper.selected_on_test:
        reasons.append(
            f"the published figures were selected on the test split ({paper.selection}); here the "
            "last weights are measured, and the test split selects nothing"
        )
    if overrides:
        reasons.append(f"every recipe was changed by {', '.join(overrides)}")
    return reasons


def _title(metric: str) -> str:
    return metric_title(metric).replace("Recall@", "R@").replace("Precision@", "P@")


def _format_interval(row: RowResult, metric: str, spread: Spread | None) -> str:
    """Format a percentage with an interval over runs or, for the recall of a single run, over
    queries.
    """
    values = row.values.get(metric)
    if not values:
        return "–"
    if spread is None and metric.startswith("recall@") and row.queries:
        return share_interval(values[0], row.queries).percent(1)
    return Interval(statistics.fmean(values), spread and spread.half_width(len(values))).percent(1)


def markdown(name: str, paper: Paper, sections: Sequence[Section], seeds: int, command: str) -> str:
    """Write a paper's page in Markdown."""
    over = (
        (
            f"mean of {seeds} seeds and its 95 % Student interval, the spread of seeds pooled over "
            "a table's rows"
        )
        if seeds > 1
        else (
            "one seed; the interval of a recall is over its queries (± 1.96 standard errors), not "
            "over runs"
        )
    )
    lines = [
        f"# {paper.title}: published and measured",
        "",
        (
            f"`{command}` with dml-train {__version__}, torch {torch.__version__}, Python "
            f"{platform.python_version()}, {os.cpu_count()} cores ({platform.machine()})."
        ),
        "",
        (
            f"Percentages; measured: {over}. Published figures in brackets can't be compared with "
            "the measured ones, for the reasons given; rows that are published alone aren't run. "
            "s: processor time of the row's runs, in seconds; a run that rows share counts in "
            "each."
        ),
        "",
        f"Published with {paper.backbone}. Selection: {paper.selection}.",
        "",
    ]
    for section in sections:
        lines += [*_section(name, section), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, section: Section) -> list[str]:
    table = section.table
    published, metrics = section.published(), section.metrics()
    pending = table.pending if section.dataset is None else ""
    several = len({dataset for dataset, _, _ in published}) > 1 or section.dataset in (None, GLYPHS)
    header = [
        "",
        *(
            f"published {NAMES.get(d, d) + ' ' if several else ''}{_title(m)}"
            for d, _, m in published
        ),
        *(f"measured {_title(m)}" for m in metrics),
        *(["measured"] if pending else []),
        "s",
    ]
    on = "" if section.dataset is None else f" on {NAMES.get(section.dataset, section.dataset)}"
    lines = [
        f"## {name}/{section.name}{on}: {table.title}",
        "",
        f"The paper: {table.expected}.",
        "",
        f"| {' | '.join(header)} |",
        "|---" * len(header) + "|",
    ]
    figures = [
        value for row in section.rows for values in row.row.published.values() for value in values
    ]
    decimals = 1 if all(value == round(value, 1) for value in drop_nan(figures)) else 2
    spreads = {
        name: pool_spread([row.values.get(name, ()) for row in section.rows]) for name in metrics
    }
    for row in section.rows:
        cells = [row.row.label]
        for dataset, place, _ in published:
            figure = row.row.published.get(dataset, [])[place : place + 1]
            text = f"{figure[0]:.{decimals}f}" if drop_nan(figure) else "–"
            cells.append(f"({text})" if section.reasons and text != "–" else text)
        cells += [_format_interval(row, metric, spreads[metric]) for metric in metrics]
        cells += [pending] if pending and not row.row.published_only else ["–"] if pending else []
        cells.append(f"{row.seconds:.0f}" if row.folders else "–")
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines += [f"- {_sentence(key, value)}" for key, value in section.orders().items()]
    lines += [f"- Not comparable: {reason}." for reason in section.reasons]
    lines += [f"- {note[:1].upper()}{note[1:]}." for note in table.notes]
    for reason in dict.fromkeys(
        row.row.published_only for row in section.rows if row.row.published_only
    ):
        labels = [row.row.label for row in section.rows if row.row.published_only == reason]
        lines.append(f"- Published alone: {'; '.join(labels)}. {reason[:1].upper()}{reason[1:]}.")
    lines += [
        f"- **{row.row.label}** failed: {fault}"
        for row in section.rows
        for fault in dict.fromkeys(row.faults)
    ]
    return lines


def _sentence(key: tuple[str, str, str], found: Order) -> str:
    dataset, metric, measured = key
    text = (
        f"Order by {NAMES.get(dataset, dataset)}'s {_title(metric)}: {found.same} of {found.pairs} "
        f"pairs of rows have the same order by measured {_title(measured)}"
    )
    if found.surely_same is None:
        return text + "."
    return text + (
        f"; {found.surely_same} of them beyond the difference's 95 % interval, "
        f"and {found.surely_opposite} have the opposite order beyond it."
    )


def as_json(
    name: str, paper: Paper, sections: Sequence[Section], seeds: int, command: str
) -> dict[str, Any]:
    """Return a paper's page in JSON's types; measured values in [0, 1], published ones as
    printed.
    """
    return {
        "paper": name,
        "title": paper.title,
        "command": command,
        "seeds": seeds,
        "versions": {
            "dml-train": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "tables": [
            {
                "table": section.name,
                "dataset": section.dataset,
                "not_comparable": list(section.reasons),
                "rows": [
                    {
                        "label": row.row.label,
                        "published": {
                            dataset: {
                                metric: None if math.isnan(value) else value
                                for metric, value in zip(
                                    section.table.metrics[dataset], values, strict=True
                                )
                            }
                            for dataset, values in row.row.published.items()
                        },
                        "measured": {metric: list(values) for metric, values in row.values.items()},
                        "published_only": row.row.published_only or None,
                        "faults": list(row.faults),
                        "seconds": row.seconds,
                        "runs": list(row.folders),
                    }
                    for row in section.rows
                ],
            }
            for section in sections
        ],
    }
