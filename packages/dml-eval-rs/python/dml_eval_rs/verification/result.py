"""The result of a verification: a mapping of metrics, with thresholds, the ROC curve, intervals and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.metrics import intervals
from dml_eval_rs.metrics.intervals import Comparison, Interval
from dml_eval_rs.metrics.names import far_of, title_of
from dml_eval_rs.metrics.plots import plot_roc
from dml_eval_rs.metrics.tables import Measured, Table
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
class Verification(Measured):
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

    thresholds: Mapping[str, float]
    n_positive: int
    n_negative: int
    roc: Roc | None = None
    fold_accuracy: npt.NDArray[np.float64] | None = None
    fold_threshold: npt.NDArray[np.float64] | None = None
    _identities: by_identity.Identities | None = None

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
            level, seed: as in `Evaluation.confidence_interval`.

        Raises:
            KeyError: if the metric wasn't measured.
            ValueError: if `level` or `seed` is out of range, the pairs are of too few identities, or the result doesn't
                keep the embeddings, as it was pickled or is of `verify_shards`.
        """
        seed = intervals.check_resampling(level, seed)
        value = self[name]
        if self.fold_accuracy is not None and name == "accuracy":
            return intervals.interval_of(self.fold_accuracy, None, level, seed)
        deviation_R1 = by_identity.resample(name, [self._count(self._shares())], seed)
        return intervals.percentiles(np.clip(value + deviation_R1[:, 0], 0, 1), level)

    def compare(self, other: Verification, name: str, *, level: float = 0.95, seed: int = 0) -> Comparison:
        """Compare two models on the same pairs by a paired permutation test over identities.

        Under the null hypothesis that the models are alike, each identity's counts of both models are swapped with
        probability 1/2; p as in `Evaluation.compare`, of permuted differences. The interval resamples the same
        identities for both models. The accuracy is compared by its folds.

        Args:
            other: the second model's result, of the same pairs in the same order.
            name, level, seed: as in `confidence_interval`, for the test and the difference's interval.

        Raises:
            KeyError, ValueError: as `confidence_interval`, or if the pairs of the results differ.
        """
        seed = intervals.check_resampling(level, seed)
        difference = self[name] - other[name]
        if name == "accuracy":
            mine_F, theirs_F = self.fold_accuracy, other.fold_accuracy
            assert mine_F is not None
            assert theirs_F is not None
            _check_same(len(mine_F) == len(theirs_F))
            return intervals.compare_differences(
                name, mine_F - theirs_F, difference, None, level, seed, unit="folds"
            )
        shares = [*self._shares(), *other._shares()]
        mine, theirs = self._count(shares), other._count(shares)
        _check_same(np.array_equal(mine.totals, theirs.totals))
        deviation_R = by_identity.resample(name, [mine, theirs], seed) @ np.array([1.0, -1.0])
        interval = intervals.percentiles(difference + deviation_R, level)
        p = intervals.p_value(by_identity.count_extreme(name, mine, theirs, seed))
        return Comparison(name, difference, p, interval, len(mine.positives), "identities")

    def to_dict(self) -> dict[str, float]:
        """Return the metrics, each threshold as ``"threshold/"`` and its metric's name, and the counts, for JSON."""
        thresholds = {f"threshold/{name}": threshold for name, threshold in self.thresholds.items()}
        return {**self._values, **thresholds, "n_positive": self.n_positive, "n_negative": self.n_negative}

    def table(self) -> Table:
        """Return the metrics' titles and values, and the numbers of pairs."""
        rows = [(title_of(name), f"{value:.4f}") for name, value in self.items()]
        numbers = (("positive pairs", self.n_positive), ("negative pairs", self.n_negative))
        return Table([*rows, *((kind, f"{number:,}") for kind, number in numbers)])

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Draw the ROC curve, which must be measured, and the points of ``"tar@far=X"``; see `Evaluation.plot`."""
        if self.roc is None:
            raise ValueError('the ROC curve was not measured; expected "auc" in metrics')
        marked = {far_of(name): value for name, value in self.items() if name.startswith("tar@")}
        return plot_roc(self.roc, marked, self.n_negative, ax, label)

    def _shares(self) -> list[float]:
        """Return the FARs about which curves of resampled identities are needed."""
        shares = [far_of(name) for name in self if name.startswith("tar@")]
        return [*shares, max(self["eer"], 1 / self.n_negative)] if "eer" in self else shares

    def _count(self, shares: list[float]) -> by_identity.AcceptedPairs:
        if self._identities is None:
            raise ValueError(
                "intervals count the pairs of each identity, but this result doesn't keep the embeddings, as it was "
                "pickled or is of verify_shards; expected the result that verify returned"
            )
        return self._identities.count(by_identity.depth_for(shares))


def _check_same(are_same: bool) -> None:
    if not are_same:
        raise ValueError("the results are of different pairs; expected the same pairs and labels in both")
