"""Diagrams of a run: logged curves, Recall@K over K, the ROC curve of pairs, prefixes, and recall
by class size.

Shapes: `C` classes, `Q` queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_core import Relevance, VerifyingEvaluator, metric_family, metric_title
from dml_train.measure.listing import is_count, list_metrics, repeats, title_of
from dml_train.report.finished import EvaluatedEmbeddings, FinishedRun
from dml_train.report.rendering import MARKS, Figure, draw_figure

_POINTS_A_CURVE = 400
_PLACES = 200  # maximum number of values of K on a curve
_LEAST_FAR = 1e-6
# number of false acceptance rates on a curve, in addition to `_NAMED`, which the caption names
_FARS = 20
_NAMED = (1e-4, 1e-3, 1e-2, 1e-1)
_PREFIX_METRICS = ("recall@1", "map@r", "r_precision", "map")  # drawn if measured
_BINS = 6


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, float | None]]]) -> list[Figure]:
    """Draw all values that a run logged at multiple steps, in the order of first appearance.

    `runs` maps the names of up to eight runs to the lines of ``metrics.jsonl``. Values that aren't
    finite are None, and omitted. A long curve shows means over equal intervals of steps.
    """
    names = dict.fromkeys(name for lines in runs.values() for line in lines for name in line)
    figures = [
        _draw_curve(name, runs)
        for name in names
        if name != "step" and not is_count(name) and not repeats(name, names)
    ]
    return [figure for figure in figures if figure is not None]


def _draw_curve(
    name: str, runs: Mapping[str, Sequence[Mapping[str, float | None]]]
) -> Figure | None:
    """Draw a value for the runs that logged it at multiple steps; return None if there aren't
    any.
    """
    title, single = title_of(name), len(runs) == 1
    series, courses, key = [], [], []
    longest = 1
    for (marker, symbol, colour), (run, lines) in zip(MARKS, runs.items(), strict=False):
        logged = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if len(logged) < 2:
            continue
        steps, values = np.array(logged, dtype=np.float64).T
        stretch = -(-len(steps) // _POINTS_A_CURVE)
        longest = max(longest, stretch)
        cuts = np.arange(0, len(steps), stretch)
        means = [np.add.reduceat(v, cuts) / np.diff([*cuts, len(v)]) for v in (steps, values)]
        series.append((means, marker, colour))
        course = f"from {values[0]:.4g} to {values[-1]:.4g}"
        courses.append(course if single else f"{run} {course}")
        if not single:
            key.append((symbol, colour, run))
    if not series:
        return None

    def draw(axes: Any, ink: str, line: str) -> None:
        for means, marker, colour in series:
            # A few marks per line distinguish the runs where colours don't.
            marks = {"color": colour, "marker": marker, "markevery": 0.15, "markersize": 5}
            axes.plot(*means, linewidth=1.4, **({"color": line} if single else marks))
        axes.set_xlabel("step")
        axes.set_title(title, fontsize=10, parse_math=False)

    words = "; ".join(courses)
    averaged = f", means of {longest} steps" if longest > 1 else ""
    return draw_figure(
        draw,
        alt=f"{title} over the steps, {words}",
        caption=f"{title}{averaged}: {words}.",
        key=key,
    )


class Accuracy(NamedTuple):
    """The diagrams, and a note if a diagram is missing."""

    figures: Sequence[Figure]
    note: str


def draw_accuracy(run: FinishedRun) -> Accuracy | None:
    """Draw recall over K, and the ROC curve if the evaluator verifies; return None if test
    embeddings aren't stored.
    """
    if run.test is None:
        return None
    figures, note = [], ""
    measured = {
        int(name.removeprefix("recall@")): value
        for name, value in run.result.items()
        if metric_family(name) == "recall@K"
    }
    recall = _recall_by_k(run.test, measured) if measured else {}
    if len(recall) > 1:
        figures.append(_draw_recall(recall, measured))
    try:
        rates = _measure_rates(run.test)
    except ValueError as error:
        rates, note = None, f"No ROC curve: {error}."
    if rates is not None:
        figures.append(_draw_roc(rates))
    return Accuracy(figures, note) if figures or note else None


def _recall_by_k(test: EvaluatedEmbeddings, measured: Mapping[int, float]) -> dict[int, float]:
    """Compute Recall@K for a range of K from the ranks of first matches; with ties, return only the
    measured values.
    """
    reciprocal_Q = test.evaluation.per_query.get("mrr")
    if reciprocal_Q is None:
        return dict(measured)
    reciprocal_Q = reciprocal_Q[~np.isnan(reciprocal_Q)]
    matched = reciprocal_Q[reciprocal_Q > 0]
    rank_M = np.rint(1 / matched)
    if len(matched) == 0 or (1 / rank_M != matched).any():
        return dict(measured)  # ranks are means over the orders of tied items
    items = (
        len(test.embedded.labels) if test.embedded.gallery is None else len(test.embedded.gallery)
    )
    most = min(items, max(measured))
    ks = np.unique(np.rint(np.geomspace(1, most, _PLACES)).astype(np.int64))
    found = np.searchsorted(np.sort(rank_M), ks, "right")
    return dict(zip(ks.tolist(), (found / len(reciprocal_Q)).tolist(), strict=True))


def _measure_rates(test: EvaluatedEmbeddings) -> Mapping[float, float] | None:
    """Measure true accept rates by FAR; return None if matches are listed, or the evaluator can't
    verify.
    """
    embedded, matches = test.embedded, test.embedded.matches
    has_lists = isinstance(matches, Relevance) or (
        matches is not None and matches.ignored is not None
    )
    if has_lists or not isinstance(test.evaluator, VerifyingEvaluator):
        return None
    n = len(embedded.labels)
    pairs = n * (n - 1) // 2 if embedded.gallery is None else n * len(embedded.gallery)
    least = max(_LEAST_FAR, 1 / max(pairs, 10))
    far = sorted(
        {*np.geomspace(least, 0.5, _FARS).tolist(), *(share for share in _NAMED if share >= least)}
    )
    return test.evaluator.true_accept_rates(far, *embedded.arguments())


def _draw_recall(recall: Mapping[int, float], measured: Mapping[int, float]) -> Figure:
    shown = {k: value for k, value in sorted(measured.items()) if k <= max(recall)}

    def draw(axes: Any, ink: str, line: str) -> None:
        axes.plot(list(recall), list(recall.values()), color=line, linewidth=1.4)
        axes.plot(list(shown), list(shown.values()), "o", color=line, markersize=4)
        axes.set_xscale("log")
        axes.set_xticks(list(shown), [f"{k:,}" for k in shown])
        axes.minorticks_off()
        axes.set_xlabel("K")
        axes.set_title("Recall@K", fontsize=10)

    words = ", ".join(f"{value:.4f} at {k:,}" for k, value in shown.items())
    return draw_figure(
        draw,
        alt=f"Recall@K over K on a logarithmic axis: {words}",
        caption=f"Recall@K, the share of queries with a match in the K nearest items: {words}.",
    )


def _draw_roc(rates: Mapping[float, float]) -> Figure:
    far, tar = (np.array([*values, 1.0]) for values in (rates, rates.values()))

    def draw(axes: Any, ink: str, line: str) -> None:
        chance = np.geomspace(far[0], 1, 100)
        axes.plot(chance, chance, color=ink, linewidth=0.8, linestyle=":")
        axes.plot(far, tar, color=line, linewidth=1.4, marker="o", markersize=2.5)
        axes.set_xscale("log")
        axes.set_xlabel("false acceptance rate")
        axes.set_ylabel("true acceptance rate")
        axes.yaxis.label.set_fontsize(8)
        axes.set_ylim(-0.03, 1.03)
        axes.set_title("Verification (ROC)", fontsize=10)
        axes.minorticks_off()

    words = ", ".join(f"{rates[share]:.4f} at {share:g}" for share in _NAMED if share in rates)
    return draw_figure(
        draw,
        alt=f"True over false acceptance rate of pairs, on a logarithmic axis: {words}",
        caption=(
            "The share of pairs with the same class that a threshold accepts, over the share of "
            f"pairs with different classes: {words}. The dotted line is chance."
        ),
    )


class Prefixes(NamedTuple):
    """Metrics by number of dimensions, in ascending order; the last row is the full embedding."""

    titles: Sequence[str]  # the metrics' titles by column
    rows: Sequence[
        tuple[int, Sequence[float | None]]
    ]  # dimensions and metrics; None if a metric is missing
    figure: Figure  # the metrics over the number of dimensions


def list_prefixes(result: Mapping[str, Any], dim: int) -> Prefixes | None:
    """List the metrics of prefixes and of all `dim` dimensions; return None if prefixes were not
    measured.
    """
    measured: dict[int, Mapping[str, Any]] = {
        int(m): each for m, each in result.get("prefixes", {}).items()
    }
    if not measured:
        return None
    measured[dim] = result
    values = {
        m: {metric.name: metric.value for metric in list_metrics(each)}
        for m, each in sorted(measured.items())
    }
    names = [name for name in _PREFIX_METRICS if any(name in each for each in values.values())]
    if not names:
        return None
    rows = [(m, [each.get(name) for name in names]) for m, each in values.items()]
    titles = [metric_title(name) for name in names]

    def draw(axes: Any, ink: str, line: str) -> None:
        for column, (marker, _, colour) in zip(range(len(titles)), MARKS, strict=False):
            points = [(m, values[column]) for m, values in rows if values[column] is not None]
            axes.plot(
                *zip(*points, strict=True), color=colour, linewidth=1.4, marker=marker, markersize=5
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks([m for m, _ in rows], [str(m) for m, _ in rows])
        axes.set_xlabel("dimensions")

    (first, lowest), (last, highest) = rows[0], rows[-1]
    words = "; ".join(
        f"{title} from {low:.4f} at {first} dimensions to {high:.4f} at {last}"
        for title, low, high in zip(titles, lowest, highest, strict=True)
        if low is not None and high is not None
    )
    key = [
        (symbol, colour, title) for title, (_, symbol, colour) in zip(titles, MARKS, strict=False)
    ]
    alt = f"Metrics over the number of dimensions: {words}"
    return Prefixes(titles, rows, draw_figure(draw, alt=alt, caption=f"{words}.", key=key))


class SizeBin(NamedTuple):
    """Classes of similar size."""

    low: int  # number of items of the smallest class
    high: int  # number of items of the largest class
    classes: int  # number of classes
    recall: float  # mean Recall@1; classes count equally
    worst: float  # lowest Recall@1


def group_by_size(
    sizes_C: npt.NDArray[np.int64], recalls_C: npt.NDArray[np.float64]
) -> list[SizeBin]:
    """Group classes by size into at most six groups of similar numbers of classes; equal sizes stay
    together.
    """
    if not len(sizes_C):
        return []
    edges = np.unique(np.quantile(sizes_C, np.linspace(0, 1, _BINS + 1)[1:], method="inverted_cdf"))
    bins_C = np.searchsorted(edges, sizes_C)  # index of the first edge that isn't below the size
    groups = []
    for b in np.unique(bins_C):
        sizes, recalls = sizes_C[bins_C == b], recalls_C[bins_C == b]
        mean, worst = float(recalls.mean()), float(recalls.min())
        groups.append(SizeBin(int(sizes.min()), int(sizes.max()), len(sizes), mean, worst))
    return groups


def draw_recall_by_size(
    sizes_C: npt.NDArray[np.int64], recalls_C: npt.NDArray[np.float64], bins: list[SizeBin]
) -> Figure:
    """Draw classes as points, larger where classes coincide, and the means of `group_by_size` as a
    line.
    """
    pairs, counts = np.unique(np.stack([sizes_C, recalls_C]), axis=1, return_counts=True)
    middles = [(b.low + b.high) / 2 for b in bins]

    def draw(axes: Any, ink: str, line: str) -> None:
        axes.scatter(*pairs, s=20 * np.sqrt(counts), color=ink, alpha=0.35, linewidths=0)
        axes.plot(
            middles, [b.recall for b in bins], color=line, marker="o", markersize=5, linewidth=1.6
        )
        if sizes_C.max() > 20 * max(1, sizes_C.min()):
            axes.set_xscale("log")
        axes.set_ylim(-0.05, 1.05)
        axes.set_xlabel("items of the class")
        axes.set_ylabel("Recall@1")

    course = f"from {bins[0].recall:.3f} for the smallest to {bins[-1].recall:.3f} for the largest"
    return draw_figure(
        draw,
        (4.8, 3.0),
        "png",
        alt=(
            f"Scatter plot of {len(sizes_C)} classes, items against Recall@1; the mean goes "
            f"{course}"
        ),
        caption=(
            "Items and Recall@1 per class (a larger point shows equal classes), and the mean: "
            f"{course}."
        ),
    )
