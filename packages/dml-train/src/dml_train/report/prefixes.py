"""The metrics of prefixes of the embedding, as a table and a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml_core import metric_title
from dml_train.measure.listing import list_metrics
from dml_train.report.figures import MARKS, Figure, draw_twice

_SHOWN = ("recall@1", "map@r", "r_precision", "map")  # those that the run measured are drawn


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Metrics by the number of dimensions, ascending; the whole embedding comes last.

    Args:
        titles: of the metrics, one a column.
        rows: the number of dimensions, and the metrics; None where a prefix lacks one.
        figure: the metrics over the number of dimensions.
    """

    titles: Sequence[str]
    rows: Sequence[tuple[int, Sequence[float | None]]]
    figure: Figure


def list_prefixes(result: Mapping[str, Any], dim: int) -> Prefixes | None:
    """List the metrics of a run's prefixes.

    Args:
        result: ``evaluation.json``; its ``"prefixes"`` are metrics by length.
        dim: the number of dimensions of the whole embedding.

    Returns:
        None if no prefix was measured, or no metric that the page draws.
    """
    measured: dict[int, Mapping[str, Any]] = {int(m): each for m, each in result.get("prefixes", {}).items()}
    if not measured:
        return None
    measured[dim] = result
    values = {
        m: {metric.name: metric.value for metric in list_metrics(each)}
        for m, each in sorted(measured.items())
    }
    names = [name for name in _SHOWN if any(name in each for each in values.values())]
    if not names:
        return None
    rows = [(m, [each.get(name) for name in names]) for m, each in values.items()]
    titles = [metric_title(name) for name in names]
    return Prefixes(titles, rows, _draw(titles, rows))


def _draw(titles: Sequence[str], rows: Sequence[tuple[int, Sequence[float | None]]]) -> Figure:
    def draw(axes: Any, ink: str, line: str) -> None:
        for column, (marker, _, colour) in zip(range(len(titles)), MARKS, strict=False):
            points = [(m, values[column]) for m, values in rows if values[column] is not None]
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, marker=marker, markersize=5)
        axes.set_xscale("log", base=2)
        axes.set_xticks([m for m, _ in rows], [str(m) for m, _ in rows])
        axes.set_xlabel("dimensions")
        axes.grid(alpha=0.2, color=ink)

    (first, lowest), (last, highest) = rows[0], rows[-1]
    words = "; ".join(
        f"{title} from {low:.4f} at {first} dimensions to {high:.4f} at {last}"
        for title, low, high in zip(titles, lowest, highest, strict=True)
        if low is not None and high is not None
    )
    key = [(symbol, colour, title) for title, (_, symbol, colour) in zip(titles, MARKS, strict=False)]
    return Figure(
        *draw_twice(draw, size=(4.6, 2.8), form="svg"),
        alt=f"Metrics over the number of dimensions: {words}",
        caption=f"{words}.",
        key=key,
    )
