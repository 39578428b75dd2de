"""Recall@1 of classes against their size.

Shapes: `C` classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_train.report.figures import Figure, draw_twice

_BINS = 6


@dataclass(frozen=True, slots=True)
class SizeBin:
    """Classes of similar size.

    Args:
        low, high: number of items of the smallest and of the largest class.
        classes: number of classes.
        recall: the mean of their Recall@1; each class counts once.
        worst: the lowest Recall@1 of a class.
    """

    low: int
    high: int
    classes: int
    recall: float
    worst: float


def group_by_size(sizes_C: npt.NDArray[np.int64], recalls_C: npt.NDArray[np.float64]) -> list[SizeBin]:
    """Group classes by size: at most six groups, smallest first, with about equal numbers of classes.

    Classes of the same size stay together.

    Args:
        sizes_C: number of items of each class.
        recalls_C: Recall@1 of each class.
    """
    if not len(sizes_C):
        return []
    edges = np.unique(np.quantile(sizes_C, np.linspace(0, 1, _BINS + 1)[1:], method="inverted_cdf"))
    bins_C = np.searchsorted(edges, sizes_C)  # the first edge that isn't below
    groups = []
    for b in np.unique(bins_C):
        sizes, recalls = sizes_C[bins_C == b], recalls_C[bins_C == b]
        groups.append(
            SizeBin(
                int(sizes.min()), int(sizes.max()), len(sizes), float(recalls.mean()), float(recalls.min())
            )
        )
    return groups


def draw_recall_by_size(
    sizes_C: npt.NDArray[np.int64], recalls_C: npt.NDArray[np.float64], bins: list[SizeBin]
) -> Figure:
    """Draw the classes as points, equal ones as one larger point, and the means of `group_by_size` as a line."""
    pairs, counts = np.unique(np.stack([sizes_C, recalls_C]), axis=1, return_counts=True)
    areas = 20 * np.sqrt(counts)
    middles = [(b.low + b.high) / 2 for b in bins]

    def draw(axes: Any, ink: str, line: str) -> None:
        axes.scatter(*pairs, s=areas, color=ink, alpha=0.35, linewidths=0)
        axes.plot(middles, [b.recall for b in bins], color=line, marker="o", markersize=5, linewidth=1.6)
        if sizes_C.max() > 20 * max(1, sizes_C.min()):
            axes.set_xscale("log")
        axes.set_ylim(-0.05, 1.05)
        axes.set_xlabel("items of the class")
        axes.set_ylabel("Recall@1")
        axes.grid(alpha=0.2, color=ink)

    course = f"from {bins[0].recall:.3f} for the smallest to {bins[-1].recall:.3f} for the largest"
    return Figure(
        *draw_twice(draw, size=(4.8, 3.0), form="png"),
        alt=f"Scatter plot of {len(sizes_C)} classes, items against Recall@1; the mean goes {course}",
        caption=f"Each class by its items and its Recall@1 (larger points: several alike), and their mean: {course}.",
    )
