"""The result of a verification: metrics, thresholds, the ROC curve, intervals and paired tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.metrics import comparison
from dml_eval_rs.metrics.comparison import Comparison, Interval, compare_differences
from dml_eval_rs.metrics.names import far_of, title_of
from dml_eval_rs.metrics.plots import plot_roc
from dml_eval_rs.metrics.tables import Measured, Table
from dml_eval_rs.verification import by_identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Roc:
    """The ROC curve: corners from (0, 0) to (1, 1), joined by straight lines.

    Attributes:
        far, tar: (n,) float64, the accepted shares of negatives and positives, in ascending order.
        threshold: (n,) float64, in descending order. Pairs are accepted if the score is at least
            the threshold.
    """

    far: npt.NDArray[np.float64]
    tar: npt.NDArray[np.float64]
    threshold: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Measured):
    """The measured metrics by name, in the requested order: ``found["tar@far=1e-3"]``,
    ``dict(found)``.

    For definitions see docs/reference/verification.md in the repository. Results are equal if all
    values are equal.

    Attributes:
        thresholds: ``"tar@far=X"`` → the least float64 number that accepts at most this share of
            negatives; ``"eer"`` → the score of a pair where the curve passes the equal error rate.
        n_positive, n_negative: numbers of pairs.
        roc: the ROC curve; None if ``"auc"`` was not requested.
        fold_accuracy: (F,) float64, the accuracy per fold, using the best threshold of the other
            folds.
        fold_threshold: (F,) float64, the threshold that is used in each fold.
    """

    thresholds: Mapping[str, float]
    n_positive: int
    n_negative: int
    roc: Roc | None = None
    fold_accuracy: npt.NDArray[np.float64] | None = None
    fold_threshold: npt.NDArray[np.float64] | None = None
    _identities: by_identity.Identities | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the embeddings from pickles."""
        return {**self.__dict__, "_identities": None}

    def confidence_interval(self, name: str, level: float = 0.95, seed: int = 0) -> Interval:
        """Return the bootstrap confidence interval for a metric, using 2,000 resamples of the
        identities (labels).

        Pairs of an identity are not independent, so identities are drawn with replacement (subsets
        bootstrap, Bolle, Ratha and Pankanti 2004); if there is a gallery, the queries' identities.
        The first call counts the pairs per identity, which takes about as long as `verify` with
        ``"auc"``. The accuracy is resampled by fold.

        Args:
            name: a measured metric.
            level, seed: see `Evaluation.confidence_interval`.

        Raises:
            KeyError: if the metric was not measured.
            ValueError: if `level` or `seed` is out of range, there are too few identities, or the
                result does not contain the embeddings, because it was pickled or comes from
                `verify_shards`.
        """
        seed = comparison.check_resampling(level, seed)
        value = self[name]
        _check_resampled(name)
        if self.fold_accuracy is not None and name == "accuracy":
            return comparison.interval_of(self.fold_accuracy, None, level, seed)
        deviation_R1 = by_identity.resample(name, [self._count(self._shares())], seed)
        return comparison.percentiles(np.clip(value + deviation_R1[:, 0], 0, 1), level)

    def compare(
        self, other: Verification, name: str, *, level: float = 0.95, seed: int = 0
    ) -> Comparison:
        """Compare models on the same pairs, using a paired permutation test over identities.

        Under the null hypothesis that the models are equal, the models' counts are swapped with
        probability 1/2 per identity; for the p-value of permuted differences see
        `Evaluation.compare`. To get the interval, the identities are resampled jointly for both
        models. The accuracy is compared by fold.

        Args:
            other: the second model's result. It must be measured on the same pairs in the same
                order.
            name, level, seed: used for the test and for the difference's interval, see
                `confidence_interval`.

        Raises:
            KeyError, ValueError: as `confidence_interval`, or if the pairs of the results differ.
        """
        seed = comparison.check_resampling(level, seed)
        difference = self[name] - other[name]
        _check_resampled(name)
        if name == "accuracy":
            mine_F: Any = self.fold_accuracy
            theirs_F: Any = other.fold_accuracy
            _check_same(len(mine_F) == len(theirs_F))
            return compare_differences(
                name, mine_F - theirs_F, difference, None, level, seed, unit="folds"
            )
        shares = [*self._shares(), *other._shares()]
        mine, theirs = self._count(shares), other._count(shares)
        kinds = (mine.negatives, theirs.negatives), (mine.positives, theirs.positives)
        _check_same(
            all(np.array_equal(ours_IT[:, -1], theirs_IT[:, -1]) for ours_IT, theirs_IT in kinds)
        )
        deviation_R = by_identity.resample(name, [mine, theirs], seed) @ np.array([1.0, -1.0])
        interval = comparison.percentiles(difference + deviation_R, level)
        p = comparison.p_value(by_identity.count_extreme(name, mine, theirs, seed))
        return Comparison(name, difference, p, interval, len(mine.positives), "identities")

    def to_dict(self) -> dict[str, float]:
        """Return the metrics, thresholds as ``"threshold/<metric>"``, and the counts, to be saved
        as JSON.
        """
        thresholds = {f"threshold/{name}": threshold for name, threshold in self.thresholds.items()}
        return {
            **self._values,
            **thresholds,
            "n_positive": self.n_positive,
            "n_negative": self.n_negative,
        }

    def table(self) -> Table:
        """Return the metrics' titles and values, and the numbers of pairs."""
        rows = [(title_of(name), f"{value:.4f}") for name, value in self.items()]
        numbers = [
            ("positive pairs", f"{self.n_positive:,}"),
            ("negative pairs", f"{self.n_negative:,}"),
        ]
        return Table([*rows, *numbers])

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Draw the ROC curve, which needs ``"auc"``, and mark each ``"tar@far=X"``; see
        `Evaluation.plot`.
        """
        if self.roc is None:
            raise ValueError('the ROC curve was not measured; expected "auc" in metrics')
        marked = {far_of(name): value for name, value in self.items() if name.startswith("tar@")}
        return plot_roc(self.roc, marked, self.n_negative, ax, label)

    def _shares(self) -> list[float]:
        """Return the FARs near which the resampled curves must be known."""
        shares = [far_of(name) for name in self if name.startswith("tar@")]
        return [*shares, max(self["eer"], 1 / self.n_negative)] if "eer" in self else shares

    def _count(self, shares: list[float]) -> by_identity.AcceptedPairs:
        if self._identities is None:
            raise ValueError(
                "intervals need the embeddings, but this result was pickled or comes from "
                "verify_shards; use verify"
            )
        return self._identities.count(by_identity.depth_for(shares))


def _check_resampled(name: str) -> None:
    # The curve of a resample is only known at some thresholds, too few for the first pairs of a
    # ranking.
    if name == "micro_ap":
        raise ValueError("micro_ap has no interval or test; expected another metric, such as auc")


def _check_same(are_same: bool) -> None:
    if not are_same:
        raise ValueError(
            "the results have different pairs; expected the same pairs and labels in both"
        )
