"""The result of a verification, and its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.plots import plot_roc
from dml_eval_rs.table import to_html, to_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Roc:
    """The ROC curve: its corners from (0, 0) to (1, 1), joined by straight lines.

    Attributes:
        far: (n,) float64, the share of negatives accepted, ascending.
        tar: (n,) float64, the share of positives accepted, ascending.
        threshold: (n,) float64, descending: the pairs with scores of at least this are accepted.
    """

    far: npt.NDArray[np.float64]
    tar: npt.NDArray[np.float64]
    threshold: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verification:
    """Metrics of verification. docs/reference/verification.md of the repository defines them.

    Attributes:
        tar: FAR → TAR@FAR, the share of positives accepted at `threshold`; empty if not requested.
        threshold: FAR → the least float64 number at which at most this share of negatives is accepted.
        eer: the equal error rate; None if not requested.
        eer_threshold: the score of a pair at which the curve passes the equal error rate.
        auc: the area under the ROC curve; None if not requested.
        n_positive: number of positive pairs.
        n_negative: number of negative pairs.
        roc: the ROC curve; None if the AUC isn't requested.
        accuracy: mean of `fold_accuracy`; None without folds.
        fold_accuracy: (F,) float64, each fold's share of right pairs at the threshold that is best on the others.
        fold_threshold: (F,) float64, these thresholds.
    """

    tar: Mapping[float, float]
    threshold: Mapping[float, float]
    eer: float | None
    eer_threshold: float | None
    auc: float | None
    n_positive: int
    n_negative: int
    roc: Roc | None = field(default=None, repr=False)
    accuracy: float | None = None
    fold_accuracy: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    fold_threshold: npt.NDArray[np.float64] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the curve and the folds, ready for JSON: each FAR as a string, None where not requested."""
        return {
            "tar": {str(far): value for far, value in self.tar.items()},
            "threshold": {str(far): value for far, value in self.threshold.items()},
            "eer": self.eer,
            "eer_threshold": self.eer_threshold,
            "auc": self.auc,
            "accuracy": self.accuracy,
            "n_positive": self.n_positive,
            "n_negative": self.n_negative,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the names and values that a table of the metrics shows."""
        rows = [(f"TAR@FAR={far:g}", f"{value:.4f}") for far, value in self.tar.items()]
        rows += [
            (name, f"{value:.4f}")
            for name, value in (("EER", self.eer), ("AUC", self.auc), ("accuracy", self.accuracy))
            if value is not None
        ]
        rows += [("positive pairs", f"{self.n_positive:,}"), ("negative pairs", f"{self.n_negative:,}")]
        return rows

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Draw the ROC curve, and the points of `tar`.

        Args:
            ax: matplotlib axes to draw on; None for a new figure.
            label: the curve's name in a legend; None for no legend.

        Returns:
            The axes.

        Raises:
            ModuleNotFoundError: if matplotlib is not installed: ``pip install 'dml-eval-rs[plot]'``.
            ValueError: if the curve was not measured.
        """
        if self.roc is None:
            raise ValueError('the ROC curve was not measured; expected verify(..., metrics=("tar", "auc"))')
        return plot_roc(self.roc.far, self.roc.tar, self.tar, self.n_negative, ax, label)

    def __str__(self) -> str:
        """Return a table of two columns."""
        return to_text(self.rows())

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return to_html(self.rows())
