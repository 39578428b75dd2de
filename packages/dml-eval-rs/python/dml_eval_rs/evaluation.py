"""The result of an evaluation, with its confidence intervals, comparisons and table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments
from dml_eval_rs.conversion import to_labels
from dml_eval_rs.plots import plot_recall
from dml_eval_rs.resampling import class_totals, count_extreme, resampled_means
from dml_eval_rs.table import to_html, to_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# An attribute's name → the metric's in `per_query`, for metrics with a K and without.
_BY_K = {
    "recall": "recall",
    "precision": "precision",
    "average_precision_at": "average_precision",
    "ndcg": "ndcg",
    "recall_share": "recall_share",
    "reciprocal_rank_at": "reciprocal_rank",
}
_SINGLE = {
    "precision_at_1": "precision_at_1",
    "r_precision": "r_precision",
    "map_at_r": "map_at_r",
    "mean_reciprocal_rank": "reciprocal_rank",
    "average_precision": "average_precision",
    "mean_inverse_negative_penalty": "inverse_negative_penalty",
}
# A title in the table → the metric.
_TITLES_BY_K = {
    "Recall": "recall",
    "Precision": "precision",
    "MAP": "average_precision",
    "nDCG": "ndcg",
    "Recall share": "recall_share",
    "MRR": "reciprocal_rank",
}
_TITLES = {
    "Precision@1": "precision_at_1",
    "R-precision": "r_precision",
    "MAP@R": "map_at_r",
    "MRR": "reciprocal_rank",
    "mAP": "average_precision",
    "mINP": "inverse_negative_penalty",
}
_RESAMPLES = 2000
_PERMUTATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a mean."""

    low: float
    high: float
    level: float

    def __str__(self) -> str:
        return f"{self.low:.4f} to {self.high:.4f} ({self.level * 100:.4g} %)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two models on the same queries.

    Attributes:
        name: the metric.
        difference: the first model's mean minus the second's.
        p_value: the two-sided p-value of the paired permutation test.
        interval: the bootstrap interval of the difference.
        n_queries: number of queries with a match; both means are taken over them.
    """

    name: str
    difference: float
    p_value: float
    interval: Interval
    n_queries: int

    def __str__(self) -> str:
        return (
            f"{self.name}: difference {self.difference:+.4f}, {self.interval}, p = {self.p_value:.4f}, "
            f"{self.n_queries:,} queries"
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Retrieval metrics, and clustering metrics where requested.

    docs/reference/metrics.md of the repository defines them. All but counts are in [0, 1]; `ami` and `ari` may be
    slightly below. ``evaluation[name]`` is the mean of ``per_query[name]``.

    Attributes:
        means: name → mean over the queries, for each name in `per_query`.
        nmi: normalised mutual information of labels and clusters; None if not requested.
        ami: mutual information of both, adjusted for chance; None if not requested.
        ari: Rand index of both, adjusted for chance; None if not requested.
        n_queries: number of all queries, with or without a match.
        n_unmatched: number of queries without a match. No mean includes them, unless ``unmatched="zero"``.
        per_query: name → float64 array (n_queries,), NaN for the unmatched (or 0): ``"recall@1"``, … for each K,
            ``"precision_at_1"``, ``"r_precision"``, ``"map_at_r"``, ``"reciprocal_rank"``, and, where requested,
            ``"precision@5"``, ``"average_precision@5"``, ``"ndcg@5"``, ``"recall_share@5"``, ``"reciprocal_rank@5"``, …
            for each K, ``"average_precision"``, ``"inverse_negative_penalty"``.
        n_gallery: number of gallery items; without a gallery, of the queries. A K beyond it is not printed.

    Two evaluations are equal if all their values are.
    """

    means: Mapping[str, float]
    nmi: float | None
    ami: float | None
    ari: float | None
    n_queries: int
    n_unmatched: int
    per_query: Mapping[str, npt.NDArray[np.float64]] = field(repr=False)
    n_gallery: int

    @property
    def recall(self) -> Mapping[int, float]:
        """K → Recall@K, the share of queries with a match among their K nearest."""
        return self._by_k("recall")

    @property
    def cmc(self) -> Mapping[int, float]:
        """K → the cumulative matching characteristic at rank K: another name of `recall`."""
        return self.recall

    @property
    def precision(self) -> Mapping[int, float]:
        """K → mean of matches among the K nearest, over K; for each K of `precision_at`."""
        return self._by_k("precision")

    @property
    def average_precision_at(self) -> Mapping[int, float]:
        """K → mean of 1/min(K, R) Σ_{i≤K} precision(i)·match(i); for each K of `average_precision_at`."""
        return self._by_k("average_precision")

    @property
    def ndcg(self) -> Mapping[int, float]:
        """K → mean normalised discounted cumulative gain of the K nearest; for each K of `ndcg_at`."""
        return self._by_k("ndcg")

    @property
    def recall_share(self) -> Mapping[int, float]:
        """K → mean of matches among the K nearest, over R; for each K of `recall_share_at`."""
        return self._by_k("recall_share")

    @property
    def reciprocal_rank_at(self) -> Mapping[int, float]:
        """K → mean of 1 / rank of the first match, 0 beyond rank K; for each K of `reciprocal_rank_at`."""
        return self._by_k("reciprocal_rank")

    @property
    def precision_at_1(self) -> float:
        """The share of queries whose nearest item is a match."""
        return self.means["precision_at_1"]

    @property
    def r_precision(self) -> float:
        """Mean of matches among the R nearest, over R."""
        return self.means["r_precision"]

    @property
    def map_at_r(self) -> float:
        """Mean of (1/R) Σ_{i≤R} precision(i)·match(i)."""
        return self.means["map_at_r"]

    @property
    def mean_reciprocal_rank(self) -> float:
        """Mean of 1 / rank of the first match, over the whole gallery."""
        return self.means["reciprocal_rank"]

    @property
    def average_precision(self) -> float:
        """Mean average precision (mAP) over the whole ranking; needs ``average_precision=True``."""
        return self._of_whole_ranking("average_precision")

    @property
    def mean_inverse_negative_penalty(self) -> float:
        """Mean of R / rank of the last match (mINP); needs ``average_precision=True``."""
        return self._of_whole_ranking("inverse_negative_penalty")

    def __getitem__(self, name: str) -> float:
        """Return a metric's mean over the queries.

        Args:
            name: one of `per_query`'s names, such as ``"recall@1"``; ``"mean_reciprocal_rank"`` and
                ``"mean_inverse_negative_penalty"`` are accepted as well.

        Raises:
            KeyError: if there is no such metric.
        """
        return self.means[self._key(name)]

    def confidence_interval(
        self, name: str, level: float = 0.95, seed: int = 0, *, by: npt.ArrayLike | None = None
    ) -> Interval:
        """Return the bootstrap confidence interval of a metric's mean.

        The percentiles (1 ± level)/2 of the means of 2,000 resamples of the queries, drawn with replacement
        (Efron 1979, percentile method). With `by` whole classes of queries are drawn (cluster bootstrap, Field and
        Welsh 2007), as many as there are: the mean of a resample is over all queries of its classes.

        Args:
            name: a metric, as in ``evaluation[name]``.
            level: the confidence level, above 0 and below 1.
            seed: seed of the resamples, 0 to 2**64 - 1. The same seed gives the same interval.
            by: (n_queries,) the queries' labels, or other groups of queries that aren't independent of each other.

        Returns:
            The interval; its width is 0 where all queries have the same value.

        Raises:
            KeyError: if there is no such metric.
            TypeError: if `by` has the wrong kind of dtype.
            ValueError: if `level` or `seed` is out of range, `by` doesn't have one entry per query, or all are of one
                class.
        """
        values_Q = self.per_query[self._key(name)]
        matched = ~np.isnan(values_Q)
        return _interval(values_Q, matched, by, level, seed)

    def compare(
        self,
        other: Evaluation,
        name: str,
        *,
        level: float = 0.95,
        seed: int = 0,
        by: npt.ArrayLike | None = None,
    ) -> Comparison:
        """Compare two models on the same queries by a paired permutation test.

        Under the null hypothesis that the models are alike, each query's difference has either sign with equal
        probability. p = (1 + #{|mean of randomly signed differences| ≥ |observed|}) / (1 + 10,000), two-sided
        (Phipson and Smyth 2010). With `by` the differences of a class's queries have the same sign.

        Args:
            other: the second model's evaluation, with the same queries in the same order.
            name: a metric, as in ``evaluation[name]``.
            level: the confidence level of the difference's interval.
            seed: seed of the signs and the resamples.
            by: (n_queries,) classes of queries, as in `confidence_interval`, for the test and the interval.

        Returns:
            The difference of the means with its p-value and interval; the p-value is 1 where no query differs.

        Raises:
            KeyError: if either evaluation has no such metric.
            TypeError, ValueError: as `confidence_interval`.
            ValueError: if the evaluations differ in the number of queries, or in which queries have a match.
        """
        mine, theirs = self.per_query[self._key(name)], other.per_query[other._key(name)]
        if len(mine) != len(theirs):
            raise ValueError(
                f"the evaluations have {len(mine)} and {len(theirs)} queries; expected the same queries in "
                "the same order"
            )
        if not np.array_equal(np.isnan(mine), np.isnan(theirs)):
            raise ValueError(
                "the evaluations have different queries without a match; expected the same queries in the same order"
            )
        matched = ~np.isnan(mine)
        difference_Q = mine - theirs
        n_queries = int(matched.sum())
        observed = float(difference_Q[matched].mean())
        terms = difference_Q[matched] if by is None else class_totals(difference_Q, by, matched)[0]
        extreme = count_extreme(terms, n_queries, observed, _PERMUTATIONS, arguments.seed(seed))
        return Comparison(
            name=name,
            difference=observed,
            p_value=(1 + extreme) / (1 + _PERMUTATIONS),
            interval=_interval(difference_Q, matched, by, level, seed),
            n_queries=n_queries,
        )

    def per_class(self, name: str, labels: npt.ArrayLike) -> dict[Any, float]:
        """Return a metric's mean over the queries of each class.

        Args:
            name: a metric, as in ``evaluation[name]``.
            labels: (n_queries,), the queries' labels.

        Returns:
            Label → mean, in sorted order of the labels; NaN for a class without any matched query.

        Raises:
            KeyError: if there is no such metric.
            ValueError: if `labels` doesn't have one entry per query.
        """
        labels_Q = to_labels(labels, "labels")
        if labels_Q.shape != (self.n_queries,):
            raise ValueError(
                f"labels has shape {labels_Q.shape}; expected ({self.n_queries},), one per query"
            )
        values_Q = self.per_query[self._key(name)]
        classes, code_Q = np.unique(labels_Q, return_inverse=True)
        matched = ~np.isnan(values_Q)
        sums = np.bincount(code_Q[matched], weights=values_Q[matched], minlength=len(classes))
        counts = np.bincount(code_Q[matched], minlength=len(classes))
        means = np.divide(sums, counts, out=np.full(len(classes), np.nan), where=counts > 0)
        return dict(zip(classes.tolist(), means.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return all but the per-query values, ready for JSON: each K as a string, None where not requested."""
        return {
            **{
                name: {str(k): value for k, value in self._by_k(metric).items()}
                for name, metric in _BY_K.items()
            },
            **{name: self.means.get(metric) for name, metric in _SINGLE.items()},
            "nmi": self.nmi,
            "ami": self.ami,
            "ari": self.ari,
            "n_queries": self.n_queries,
            "n_unmatched": self.n_unmatched,
            "n_gallery": self.n_gallery,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the names and values that a table of the metrics shows.

        A metric of a K beyond the gallery is omitted if a smaller K is shown, and precision@1 where Recall@1 is shown.
        """
        rows = []
        for title, name in _TITLES_BY_K.items():
            values = self._by_k(name)
            shown = {k: value for k, value in values.items() if k <= self.n_gallery} or values
            rows += [(f"{title}@{k}", f"{value:.4f}") for k, value in shown.items()]
        rows += [
            (title, f"{self.means[name]:.4f}")
            for title, name in _TITLES.items()
            if name in self.means and not (name == "precision_at_1" and 1 in self.recall)
        ]
        rows += [
            (name, f"{value:.4f}")
            for name, value in (("NMI", self.nmi), ("AMI", self.ami), ("ARI", self.ari))
            if value is not None
        ]
        rows.append(("queries", f"{self.n_queries:,}"))
        if self.n_unmatched:
            rows.append(("without a match", f"{self.n_unmatched:,}"))
        return rows

    def __str__(self) -> str:
        """Return a table of two columns."""
        return to_text(self.rows())

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Draw Recall@K over K; a K beyond the gallery is omitted.

        Args:
            ax: matplotlib axes to draw on; None for a new figure.
            label: the curve's name in a legend; None for no legend.

        Returns:
            The axes.

        Raises:
            ModuleNotFoundError: if matplotlib is not installed: ``pip install 'dml-eval-rs[plot]'``.
            ValueError: if no Recall@K was measured.
        """
        return plot_recall({k: value for k, value in self.recall.items() if k <= self.n_gallery}, ax, label)

    @classmethod
    def from_dict(
        cls, metrics: Mapping[str, Any], per_query: Mapping[str, npt.NDArray[np.float64]]
    ) -> Evaluation:
        """Rebuild an evaluation from saved values.

        Args:
            metrics: the result of `to_dict`, also as read from JSON; other keys are ignored.
            per_query: the evaluation's `per_query`.

        Raises:
            KeyError: if a metric is missing.
        """
        by_k = {
            f"{metric}@{k}": value for name, metric in _BY_K.items() for k, value in metrics[name].items()
        }
        single = {metric: metrics[name] for name, metric in _SINGLE.items() if metrics[name] is not None}
        others = ("nmi", "ami", "ari", "n_queries", "n_unmatched", "n_gallery")
        return cls(means={**by_k, **single}, per_query=per_query, **{name: metrics[name] for name in others})

    def _by_k(self, metric: str) -> dict[int, float]:
        found = {}
        for name, mean in self.means.items():
            of, _, k = name.partition("@")
            if of == metric and k:
                found[int(k)] = mean
        return found

    def _of_whole_ranking(self, name: str) -> float:
        if name not in self.means:
            raise AttributeError(
                f"{name} was not measured, since it needs the ranks of all matches; "
                "expected evaluate(..., average_precision=True)"
            )
        return self.means[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        return all(_same(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    __hash__ = None  # type: ignore[assignment]  # it holds arrays

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return to_html(self.rows())

    def _key(self, name: str) -> str:
        key = _SINGLE.get(name, name)
        if key not in self.per_query:
            raise KeyError(f"no metric {name!r}; expected one of {', '.join(map(repr, self.per_query))}")
        return key


# help(Evaluation) begins with the class's docstring instead of a line of all fields: users receive evaluations.
Evaluation.__signature__ = inspect.Signature()  # type: ignore[attr-defined]


def _same(a: object, b: object) -> bool:
    """Whether two values are equal, arrays within mappings too; NaN equals NaN."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
    return a == b


def bootstrap_interval(values: npt.NDArray[np.float64], level: float, seed: int) -> Interval:
    """Return the percentile interval of the mean over resamples of the values."""
    return _interval(values, np.ones(len(values), bool), None, level, seed)


def _interval(
    values: npt.NDArray[np.float64],
    measured: npt.NDArray[np.bool_],
    by: npt.ArrayLike | None,
    level: float,
    seed: int,
) -> Interval:
    """Return the percentile interval of the mean of the measured values, over resamples of them or of classes."""
    seed = arguments.seed(seed)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a number above 0 and below 1, e.g. 0.95")
    if by is None:
        sums, counts = values[measured], np.ones(int(measured.sum()), np.int64)
    else:
        sums, counts = class_totals(values, by, measured)
    means = resampled_means(sums, counts, _RESAMPLES, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level)
