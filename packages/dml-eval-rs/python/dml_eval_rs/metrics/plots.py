"""Plots of results; matplotlib is imported when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SAMPLES = 2000  # points per curve, more than the pixels of a figure


def plot_recall(recall: Mapping[int, float], ax: Axes | None, label: str | None) -> Axes:
    """Draw Recall@K over K."""
    if not recall:
        raise ValueError(
            "no Recall@K was measured; expected metrics such as ('recall@1', 'recall@10')"
        )
    axes = _axes(ax)
    ks = sorted(recall)
    axes.plot(ks, [recall[k] for k in ks], marker="o", label=label)
    # Other results may already be drawn, so fit the axes to all curves.
    drawn = [line.get_data() for line in axes.lines]
    lowest = min(min(y) for _, y in drawn)
    axes.set(xscale="log", ylim=(max(-0.02, lowest - 0.05), 1.02), xlabel="K", ylabel="Recall@K")
    ticks = sorted({int(k) for x, _ in drawn for k in x})
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xticks([], minor=True)
    return _finish(axes, label)


def plot_roc(
    roc: Any, marked: Mapping[float, float], n_negative: int, ax: Axes | None, label: str | None
) -> Axes:
    """Draw TAR over FAR, on a logarithmic axis that begins at one accepted negative; mark the
    requested points.
    """
    axes = _axes(ax)
    x = np.geomspace(min([1 / n_negative, 0.5, *marked]), 1, _SAMPLES)
    (line,) = axes.plot(x, np.interp(x, roc.far, roc.tar), label=label)
    if marked:
        axes.plot(list(marked), list(marked.values()), "o", color=line.get_color())
    least = min(min(line.get_xdata()) for line in axes.lines)
    axes.set(xscale="log", xlim=(least, 1), ylim=(-0.02, 1.02))
    axes.set(xlabel="false acceptance rate", ylabel="true acceptance rate")
    return _finish(axes, label)


def _axes(ax: Axes | None) -> Any:
    """Return the given axes, or create a figure."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        message = "plot needs matplotlib, which is not installed: pip install 'dml-eval-rs[plot]'"
        raise ModuleNotFoundError(message, name="matplotlib") from error
    if ax is not None and not hasattr(ax, "plot"):
        raise TypeError(
            f"ax is a {type(ax).__name__}; expected matplotlib axes, or None for a new figure"
        )
    return pyplot.subplots()[1] if ax is None else ax


def _finish(axes: Axes, label: str | None) -> Axes:
    axes.grid(alpha=0.3)
    if label is not None:
        axes.legend()
    return axes
