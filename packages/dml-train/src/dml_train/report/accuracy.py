"""Diagrams of the test embeddings: Recall@K over K, and the ROC curve of their pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dml_core import Relevance, VerifyingEvaluator, metric_family
from dml_train.report.figures import Figure, draw_twice
from dml_train.report.finished import EvaluatedEmbeddings, FinishedRun

_SIZE = (4.6, 2.8)  # inches, as the curves of a training
_PLACES = 200  # values of K on a curve, at most
_LEAST_FAR = 1e-6
_FARS = 20  # FARs on a curve, beside those named in its caption
_NAMED = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The diagrams, and a note where one is missing."""

    figures: Sequence[Figure]
    note: str


def draw_accuracy(run: FinishedRun) -> Accuracy | None:
    """Draw recall over K, and the ROC curve where the evaluator verifies; None for a run without test embeddings."""
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
    """Return Recall@K for many K from the rank of each query's first match; without definite ranks, as measured."""
    reciprocal_Q = test.evaluation.per_query.get("mrr")
    if reciprocal_Q is None:
        return dict(measured)
    reciprocal_Q = reciprocal_Q[~np.isnan(reciprocal_Q)]
    matched = reciprocal_Q[reciprocal_Q > 0]
    rank_M = np.rint(1 / matched)
    if len(matched) == 0 or (1 / rank_M != matched).any():
        return dict(measured)  # means over the orders of tied items
    items = len(test.embedded.labels) if test.embedded.gallery is None else len(test.embedded.gallery)
    most = min(items, max(measured))
    ks = np.unique(np.rint(np.geomspace(1, most, _PLACES)).astype(np.int64))
    found = np.searchsorted(np.sort(rank_M), ks, "right")
    return dict(zip(ks.tolist(), (found / len(reciprocal_Q)).tolist(), strict=True))


def _measure_rates(test: EvaluatedEmbeddings) -> Mapping[float, float] | None:
    """Measure TAR at FARs from one negative pair on; None for listed items, or an evaluator that doesn't verify."""
    embedded, matches = test.embedded, test.embedded.matches
    has_lists = isinstance(matches, Relevance) or (matches is not None and matches.ignored is not None)
    if has_lists or not isinstance(test.evaluator, VerifyingEvaluator):
        return None
    n = len(embedded.labels)
    pairs = n * (n - 1) // 2 if embedded.gallery is None else n * len(embedded.gallery)
    least = max(_LEAST_FAR, 1 / max(pairs, 10))
    far = sorted({*np.geomspace(least, 0.5, _FARS).tolist(), *(share for share in _NAMED if share >= least)})
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
        axes.grid(alpha=0.2, color=ink)

    words = ", ".join(f"{value:.4f} at {k:,}" for k, value in shown.items())
    return Figure(
        *draw_twice(draw, _SIZE, "svg"),
        alt=f"Recall@K over K on a logarithmic axis: {words}",
        caption=f"Recall@K, the share of queries with a match among the K nearest: {words}.",
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
        axes.grid(alpha=0.2, color=ink)
        axes.minorticks_off()

    words = ", ".join(f"{rates[share]:.4f} at {share:g}" for share in _NAMED if share in rates)
    return Figure(
        *draw_twice(draw, _SIZE, "svg"),
        alt=f"True over false acceptance rate of pairs, on a logarithmic axis: {words}",
        caption="The share of pairs of one class that a threshold accepts, over its share of pairs of two classes: "
        f"{words}. Dotted: chance.",
    )
