"""How well classes are found, against how many items they have.

Shapes: `C` classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_train.report.figures import Figure, drawn_twice

_BINS = 6


@dataclass(frozen=True, slots=True)
class SizeBin:
    """Classes of about one size.

    Args:
        low, high: how many items the smallest and the largest of them has.
        classes: how many there are.
        recall: the mean of their Recall@1, each class counted once.
        worst: the least Recall@1 of any.
    """

    low: int
    high: int
    classes: int
    recall: float
    worst: float


def by_size(sizes_C: npt.NDArray[np.int64], recalls_C: npt.NDArray[np.float64]) -> list[SizeBin]:
    """At most six groups of classes by size, smallest first, of about equal numbers of classes.

    Classes of one size are never parted.

    Args:
        sizes_C: the classes' items.
        recalls_C: the classes' Recall@1.
    """
    if not len(sizes_C):
        return []
    edges = np.unique(np.quantile(sizes_C, np.linspace(0, 1, _BINS + 1)[1:], method="inverted_cdf"))
    bins_C = np.searchsorted(edges, sizes_C)  # the first edge that isn't below
    found = []
    for b in np.unique(bins_C):
        sizes, recalls = sizes_C[bins_C == b], recalls_C[bins_C == b]
        found.append(
            SizeBin(
                int(sizes.min()), int(sizes.max()), len(sizes), float(recalls.mean()), float(recalls.min())
            )
        )
    return found


def size_against_recall(
    sizes_C: npt.NDArray[np.int64], recalls_C: npt.NDArray[np.float64], bins: list[SizeBin]
) -> Figure:
    """The classes as points, equal ones as one larger point, and the means of `by_size` as a line."""
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
        *drawn_twice(draw, size=(4.8, 3.0), form="png"),
        alt=f"Scatter plot of {len(sizes_C)} classes, items against Recall@1; the mean goes {course}",
        caption=f"Each class by its items and its Recall@1 (larger points: several alike), and their mean: {course}.",
    )
