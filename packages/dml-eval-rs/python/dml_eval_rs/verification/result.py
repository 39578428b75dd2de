"""The result of a verification: a mapping of metrics, with thresholds, the ROC curve, intervals and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.metrics.intervals import (
    PERMUTATIONS,
    Comparison,
    Interval,
    check_level,
    count_extreme,
    interval_of,
    p_value,
    percentiles,
)
from dml_eval_rs.metrics.names import far_of, title_of
from dml_eval_rs.metrics.plots import plot_roc
from dml_eval_rs.metrics.tables import Table, Tabular
from dml_eval_rs.verification import by_identity

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


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Tabular, Mapping[str, float]):
    """The metrics that were measured, by name, in the order asked: ``found["tar@far=1e-3"]``, ``dict(found)``.

    docs/reference/verification.md of the repository defines the metrics. Two results are equal if all their values are.

    Attributes:
        thresholds: ``"tar@far=X"`` → the least float64 number at which at most this share of negatives is accepted;
            ``"eer"`` → the score of a pair at which the curve passes the equal error rate.
        n_positive: number of positive pairs.
        n_negative: number of negative pairs.
        roc: the ROC curve; None if the AUC isn't asked for.
        fold_accuracy: (F,) float64, each fold's share of right pairs at the threshold that is best on the others.
        fold_threshold: (F,) float64, these thresholds.
    """

    _values: Mapping[str, float]
    thresholds: Mapping[str, float]
    n_positive: int
    n_negative: int
    roc: Roc | None = None
    fold_accuracy: npt.NDArray[np.float64] | None = None
    fold_threshold: npt.NDArray[np.float64] | None = None
    _identities: by_identity.Identities | None = None

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(f"no metric {name!r} was measured; expected one of {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verification):
            return NotImplemented
        return list(self) == list(other) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # it holds arrays

    def __repr__(self) -> str:
        return f"Verification({self.to_dict()})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the embeddings out of a pickle."""
        return {**self.__dict__, "_identities": None}

    def confidence_interval(self, name: str, level: float = 0.95, seed: int = 0) -> Interval:
        """Return the bootstrap confidence interval of a metric, over 2,000 resamples of the identities (labels).

        Pairs of one identity depend on each other, so whole identities are drawn with replacement (subsets bootstrap,
        Bolle, Ratha and Pankanti 2004); with a gallery, those of the queries. The first call counts the pairs of each
        identity, which takes about as long as `verify` with ``"auc"``. The accuracy is resampled by its folds.

        Args:
            name: a metric that was measured.
            level: the confidence level, above 0 and below 1.
            seed: seed of the resamples, 0 to 2**64 - 1. The same seed gives the same interval.

        Returns:
            The interval between the percentiles (1 ± level)/2.

        Raises:
            KeyError: if the metric wasn't measured.
            ValueError: if `level` or `seed` is out of range, the pairs are of too few identities, or the result doesn't
                keep the embeddings, as it was pickled or is of `verify_shards`.
        """
        check_level(level)
        value, seed = self[name], arguments.seed(seed)
        if name == "accuracy":
            return _interval_of_folds(self.fold_accuracy, level, seed)
        deviation_R1 = by_identity.resample(name, [self._count(self._shares())], seed)
        return percentiles(np.clip(value + deviation_R1[:, 0], 0, 1), level)

    def compare(self, other: Verification, name: str, *, level: float = 0.95, seed: int = 0) -> Comparison:
        """Compare two models on the same pairs by a paired permutation test over identities.

        Under the null hypothesis that the models are alike, each identity's counts of both models are swapped with
        probability 1/2. p = (1 + #{|permuted difference| ≥ |observed|}) / (1 + 10,000), two-sided (Phipson and Smyth
        2010). The interval resamples the same identities for both models. The accuracy is compared by its folds.

        Args:
            other: the second model's result, of the same pairs in the same order.
            name: a metric that both measured.
            level: the confidence level of the difference's interval.
            seed: seed of the swaps and the resamples.

        Returns:
            The difference of the metrics with its p-value and interval, and the number of identities (or folds).

        Raises:
            KeyError: if either result lacks the metric.
            ValueError: as `confidence_interval`, or if the pairs of the results differ.
        """
        check_level(level)
        difference, seed = self[name] - other[name], arguments.seed(seed)
        if name == "accuracy":
            assert self.fold_accuracy is not None
            assert other.fold_accuracy is not None
            n = len(self.fold_accuracy)
            _check_same(n == len(other.fold_accuracy))
            difference_F = self.fold_accuracy - other.fold_accuracy
            interval = _interval_of_folds(difference_F, level, seed)
            extreme = count_extreme(difference_F, n, difference, PERMUTATIONS, seed)
        else:
            shares = [*self._shares(), *other._shares()]
            mine, theirs = self._count(shares), other._count(shares)
            n = len(mine.positives)
            _check_same(np.array_equal(mine.totals, theirs.totals))
            deviation_R = by_identity.resample(name, [mine, theirs], seed) @ np.array([1.0, -1.0])
            interval = percentiles(difference + deviation_R, level)
            extreme = by_identity.count_extreme(name, mine, theirs, seed)
        unit = "folds" if name == "accuracy" else "identities"
        return Comparison(name, difference, p_value(extreme), interval, n, unit)

    def to_dict(self) -> dict[str, float]:
        """Return the metrics, each threshold as ``"threshold/"`` and its metric's name, and the counts, for JSON."""
        thresholds = {f"threshold/{name}": threshold for name, threshold in self.thresholds.items()}
        return {**self._values, **thresholds, "n_positive": self.n_positive, "n_negative": self.n_negative}

    def table(self) -> Table:
        """Return the metrics' titles and values, and the numbers of pairs."""
        rows = [(title_of(name), f"{value:.4f}") for name, value in self.items()]
        numbers = (("positive pairs", self.n_positive), ("negative pairs", self.n_negative))
        return Table([*rows, *((kind, f"{number:,}") for kind, number in numbers)])

    def precise(self) -> Table:
        """Return the names and all digits of the values, thresholds and counts."""
        return Table([(name, repr(value)) for name, value in self.to_dict().items()])

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Draw the ROC curve, and the points of ``"tar@far=X"``.

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
            raise ValueError('the ROC curve was not measured; expected "auc" in metrics')
        marked = {far_of(name): self[name] for name in self._rates()}
        return plot_roc(self.roc.far, self.roc.tar, marked, self.n_negative, ax, label)

    def _rates(self) -> list[str]:
        return [name for name in self if name.startswith("tar@")]

    def _shares(self) -> list[float]:
        """Return the FARs about which curves of resampled identities are needed."""
        shares = [far_of(name) for name in self._rates()]
        return [*shares, max(self["eer"], 1 / self.n_negative)] if "eer" in self else shares

    def _count(self, shares: list[float]) -> by_identity.AcceptedPairs:
        if self._identities is None:
            raise ValueError(
                "intervals count the pairs of each identity, but this result doesn't keep the embeddings, as it was "
                "pickled or is of verify_shards; expected the result that verify returned"
            )
        return self._identities.count(by_identity.depth_for(shares))


def _interval_of_folds(values_F: npt.NDArray[np.float64] | None, level: float, seed: int) -> Interval:
    assert values_F is not None
    return interval_of(values_F, np.ones(len(values_F), np.bool_), None, level, seed)


def _check_same(are_same: bool) -> None:
    if not are_same:
        raise ValueError("the results are of different pairs; expected the same pairs and labels in both")
