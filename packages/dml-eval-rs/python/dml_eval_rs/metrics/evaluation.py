"""The result of an evaluation: metrics, intervals, paired tests and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.metrics.comparison import Comparison, Interval, compare_differences, interval_of
from dml_eval_rs.metrics.names import family_of, title_of
from dml_eval_rs.metrics.plots import plot_recall
from dml_eval_rs.metrics.tables import Measured, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COUNTS = ("n_queries", "n_unmatched", "n_gallery")


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Measured):
    """The measured metrics by name, in the requested order: ``evaluation["recall@1"]``,
    ``dict(evaluation)``.

    For definitions see docs/reference/metrics.md in the repository. Metrics are in [0, 1], but
    `ami` and `ari` can be negative. Evaluations are equal if all values are equal.

    Attributes:
        per_query: name → float64 array (n_queries,). The metric is the mean of this array,
            excluding NaN. The value is NaN (or 0, if ``unmatched="zero"``) for a query with no
            match. Only retrieval metrics have per-query values.
        n_queries, n_unmatched: number of queries, and number of queries that do not have a match.
        n_gallery: number of gallery items, or of queries if a gallery is not used.
    """

    per_query: Mapping[str, npt.NDArray[np.float64]]
    n_queries: int
    n_unmatched: int
    n_gallery: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        mine, theirs = self.per_query, other.per_query
        return (
            super().__eq__(other)
            and mine.keys() == theirs.keys()
            and all(np.array_equal(mine[name], theirs[name], equal_nan=True) for name in mine)
        )

    def confidence_interval(
        self, name: str, level: float = 0.95, seed: int = 0, *, by: npt.ArrayLike | None = None
    ) -> Interval:
        """Return the bootstrap confidence interval for a metric's mean.

        The interval lies between percentiles (1 ± level)/2 of the means of 2,000 resamples: queries
        are drawn with replacement (Efron 1979). When queries depend on each other, use `by` to draw
        classes, as many as there are (cluster bootstrap, Field and Welsh 2007); the mean is then
        taken over all queries in the drawn classes.

        Args:
            name: a metric with per-query values.
            level: the confidence level, between 0 and 1. Default: 0.95.
            seed: seed for the resamples, 0 (default) to 2**64 - 1. Equal seeds will give equal
                intervals.
            by: (n_queries,) the queries' labels, or other groups of queries.

        Raises:
            KeyError: if the metric was not measured per query.
            TypeError: if the dtype of `by` is wrong.
            ValueError: if `level` or `seed` is out of range, or `by` is of a wrong length or a
                single class.
        """
        return interval_of(self._of_queries(name), by, level, seed)

    def compare(
        self,
        other: Evaluation,
        name: str,
        *,
        level: float = 0.95,
        seed: int = 0,
        by: npt.ArrayLike | None = None,
    ) -> Comparison:
        """Compare models on the same queries, using a paired permutation test.

        Under the null hypothesis that the models are equal, a query's difference is equally likely
        to be positive or negative. p = (1 + #{|mean of randomly signed differences| ≥ |observed|})
        / (1 + 10,000), two-sided (Phipson and Smyth 2010). If `by` is given, differences in a class
        get equal signs. To compare more models or metrics, use `dml_eval_rs.compare`.

        Args:
            other: the second model's evaluation. It must be measured on the same queries in the
                same order.
            name, level, seed, by: used for the test and for the difference's interval, see
                `confidence_interval`.

        Returns:
            The difference between the means, a p-value and an interval. When all queries are equal,
            the p-value is 1.

        Raises:
            KeyError, TypeError, ValueError: as `confidence_interval`, or if the queries are not
                identical.
        """
        mine, theirs = self._of_queries(name), other._of_queries(name)
        if not np.array_equal(np.isnan(mine), np.isnan(theirs)):
            sizes = f"{len(mine)} and {len(theirs)} queries"
            wrong = sizes if len(mine) != len(theirs) else "different queries without a match"
            raise ValueError(
                f"the evaluations have {wrong}; expected the same queries in the same order"
            )
        difference_Q = mine - theirs
        observed = float(difference_Q[~np.isnan(mine)].mean())
        return compare_differences(name, difference_Q, observed, by, level, seed)

    def per_class(self, name: str, labels: npt.ArrayLike) -> dict[Any, float]:
        """Return the mean of a metric per class, sorted by label; NaN if none of the class's
        queries has a match.

        Args:
            name: a metric with per-query values.
            labels: (n_queries,) the queries' labels.

        Raises:
            KeyError, TypeError, ValueError: as `confidence_interval`.
        """
        labels_Q = arguments.partition(labels, "labels", self.n_queries, "query")
        values_Q = self._of_queries(name)
        classes, code_Q = np.unique(labels_Q, return_inverse=True)
        matched = ~np.isnan(values_Q)
        sums = np.bincount(code_Q[matched], weights=values_Q[matched], minlength=len(classes))
        counts = np.bincount(code_Q[matched], minlength=len(classes))
        means = np.divide(sums, counts, out=np.full(len(classes), np.nan), where=counts > 0)
        return dict(zip(classes.tolist(), means.tolist(), strict=True))

    def to_dict(self) -> dict[str, float]:
        """Return the metrics and the counts `n_queries`, `n_unmatched` and `n_gallery`, to be saved
        as JSON.
        """
        return {**self._values, **{name: getattr(self, name) for name in _COUNTS}}

    @classmethod
    def from_dict(
        cls, metrics: Mapping[str, Any], per_query: Mapping[str, npt.NDArray[np.float64]]
    ) -> Evaluation:
        """Rebuild an evaluation from `to_dict`, which can be loaded from JSON, and `per_query`;
        ignore unknown keys.

        Raises:
            KeyError: if a count, or a metric that is in `per_query`, is missing.
        """
        values = {name: value for name, value in metrics.items() if family_of(name) is not None}
        if missing := [name for name in per_query if name not in values]:
            raise KeyError(
                f"metrics has no {', '.join(missing)}; expected a value per name in per_query"
            )
        return cls(values, per_query, *(metrics[name] for name in _COUNTS))

    def table(self) -> Table:
        """Return the titles and values of the metrics, and the number of queries.

        Omit a K that exceeds the gallery if a smaller K is shown, and Precision@1 if the equal
        Recall@1 is shown.
        """
        fitting = {family_of(name) for name in self if _k_of(name) <= self.n_gallery}
        shown = [
            name for name in self if _k_of(name) <= self.n_gallery or family_of(name) not in fitting
        ]
        if "recall@1" in self:
            shown = [name for name in shown if name != "precision@1"]
        rows = [(title_of(name), f"{self[name]:.4f}") for name in shown]
        rows.append(("queries", f"{self.n_queries:,}"))
        if self.n_unmatched:
            rows.append(("without a match", f"{self.n_unmatched:,}"))
        return Table(rows)

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Draw Recall@K over K on matplotlib axes, by default in a new figure, and return the axes.

        Use `label` to name the curve in a legend. Note that a K that exceeds the gallery is
        omitted.

        Raises:
            ModuleNotFoundError: if matplotlib is not installed:
                ``pip install 'dml-eval-rs[plot]'``.
            ValueError: if Recall@K was not measured.
        """
        by_k = {_k_of(name): value for name, value in self.items() if family_of(name) == "recall@K"}
        return plot_recall(
            {k: value for k, value in by_k.items() if k <= self.n_gallery}, ax, label
        )

    def _of_queries(self, name: str) -> npt.NDArray[np.float64]:
        if name not in self.per_query:
            raise KeyError(
                f"no metric {name!r} per query; expected one of {', '.join(self.per_query)}"
            )
        return self.per_query[name]


def _k_of(name: str) -> int:
    k = name.partition("@")[2]
    return int(k) if k.isdecimal() else 0
