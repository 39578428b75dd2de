"""Curves of resampled identities (labels), used for intervals and paired tests: see
docs/reference/verification.md.

Shapes: `I` identities, `T` thresholds, `R` repetitions, `M` pairs, `Q` queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs.arguments import Sides
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.metrics.comparison import PERMUTATIONS, RESAMPLES, batches
from dml_eval_rs.metrics.names import far_of

_SAMPLED = 1 << 21  # pairs to sample, to place the thresholds
# read a threshold from the sample only if it accepts at least this number of sampled negatives
_READ = 16
_AT_A_TIME = 1 << 21  # numbers to be computed per batch
_LOW = 12  # the number of thresholds with a FAR of about 2⁻⁶ or more
# Thresholds are lowered by this share, so that rounding never divides pairs with equal scores.
_NUDGE = 2.0**-40

_Floats = npt.NDArray[np.float64]
_Curves = tuple[_Floats, _Floats]
_Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class AcceptedPairs:
    """The accepted pairs per identity and threshold, sorted by FAR; the last column contains all
    pairs.
    """

    negatives: _Floats  # (I, T + 1), whole numbers
    positives: _Floats
    of_both: bool  # whether a negative pair counts for both identities, or only for the query's

    def curves(self, weight_RI: _Floats) -> _Curves:
        """Return FAR and TAR (R, T + 1) for weighted identities; a pair of identities has weight
        wᵢ + wⱼ − 1.
        """
        once_T = self.negatives.sum(axis=0) / 2 if self.of_both else 0.0
        return _rates(weight_RI @ self.negatives - once_T), _rates(weight_RI @ self.positives)

    def swapped_curves(self, other: AcceptedPairs, is_swapped_RI: _Floats) -> _Curves:
        """Return FAR and TAR (R, T + 1) when some identities use the other model's pairs."""
        negatives_RT = self.negatives.sum(axis=0) + is_swapped_RI @ (
            other.negatives - self.negatives
        )
        positives_RT = self.positives.sum(axis=0) + is_swapped_RI @ (
            other.positives - self.positives
        )
        return _rates(negatives_RT), _rates(positives_RT)


@dataclass(slots=True)
class Identities:
    """The pairs of a result. They are counted per identity when an interval is first requested."""

    sides: Sides  # the rows of both sides, excluding junk
    relation: Relation
    similarity: str
    threads: int | None
    # The given pairs (M, 2), whether they are positive (M,), and the scores (M,); None to use all
    # pairs.
    given: tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_], _Floats] | None = None
    _counted: AcceptedPairs | None = None

    def score(self, pairs_M2: npt.NDArray[np.uint32]) -> _Floats:
        """Return the scores (M,) of pairs."""
        return _native.pair_scores(
            self.sides.queries,
            self.sides.gallery,
            pairs_M2,
            similarity=self.similarity,
            threads=self.threads,
        )

    def count(self, depth: int) -> AcceptedPairs:
        """Count the accepted pairs per identity, using thresholds with FARs of about √2⁻¹, √2⁻², …,
        √2⁻ᵈᵉᵖᵗʰ.
        """
        if self._counted is None or self._counted.negatives.shape[1] <= depth:
            of_query = np.unique(self.relation.codes[0], return_inverse=True)[1].reshape(-1)
            counts = np.zeros((2, int(of_query.max()) + 1, depth + 1))
            count = self._count_all if self.given is None else self._count_given
            count(self._place(depth), of_query, counts)
            negatives, positives = counts[:, counts.any(axis=(0, 2))]
            self._counted = AcceptedPairs(negatives, positives, self.sides.gallery is None)
        found, last = self._counted, slice(-depth - 1, None)
        return AcceptedPairs(found.negatives[:, last], found.positives[:, last], found.of_both)

    def _place(self, depth: int) -> _Floats:
        """Return thresholds (T,) in descending order, estimated from the scores of sampled
        negatives.
        """
        of_query, of_item = self.relation.codes
        if self.given is not None:
            scores = np.repeat(self.given[2][~self.given[1]], _READ)
        else:
            size = min(_SAMPLED, _READ * len(of_query) * len(of_item))
            rng = np.random.default_rng(0)
            pairs_M2 = rng.integers(0, (len(of_query), len(of_item)), (size, 2)).astype(np.uint32)
            pairs_M2 = pairs_M2[of_query[pairs_M2[:, 0]] != of_item[pairs_M2[:, 1]]]
            scores = self.score(pairs_M2)
        scores = np.sort(scores)[::-1] if len(scores) else np.zeros(1)
        accepted_T = len(scores) * 2.0 ** (np.arange(-depth, 0) / 2)
        threshold_T = scores[np.maximum(accepted_T, 1).astype(np.int64) - 1]
        # When the sample is too small for a FAR, extrapolate in the FAR's logarithm.
        first, second = (scores[min(number, len(scores)) - 1] for number in (_READ, 4 * _READ))
        beyond_T = first + (first - second) * np.log(_READ / accepted_T) / np.log(4)
        threshold_T = np.where(accepted_T < _READ, beyond_T, threshold_T)
        if self.similarity == "hamming":
            return np.minimum(np.ceil(threshold_T), 0.0)
        return threshold_T - np.abs(threshold_T) * _NUDGE

    def _count_given(self, threshold_T: _Floats, of_query: _Rows, counts: _Floats) -> None:
        assert self.given is not None
        negatives, positives = counts
        pairs_M2, positive_M, score_M = self.given
        _add_accepted(
            positives, of_query[pairs_M2[positive_M, 0]], threshold_T, score_M[positive_M]
        )
        for query_M in pairs_M2[~positive_M].T[: 2 if self.sides.gallery is None else 1]:
            _add_accepted(negatives, of_query[query_M], threshold_T, score_M[~positive_M])

    def _count_all(self, threshold_T: _Floats, of_query: _Rows, counts: _Floats) -> None:
        """Compare batches of queries with all items. If a gallery is not given, pairs are compared
        from both ends.
        """
        negatives, positives = counts
        sides, given, (label_Q, label_G) = self.sides, self.relation, self.relation.codes
        matches_Q = np.bincount(label_G, minlength=int(label_Q.max()) + 1)[label_Q]
        batch = max(1, _AT_A_TIME // max(len(threshold_T), sides.queries.shape[1]))
        for start in range(0, len(label_Q), batch):
            row_q = np.arange(start, min(start + batch, len(label_Q)), dtype=np.int64)
            relation = Relation(
                labels=label_Q[row_q],
                gallery_labels=label_G,
                groups=None if given.groups is None else given.groups[row_q],
                gallery_groups=given.groups if sides.gallery is None else given.gallery_groups,
                exclude=row_q if sides.gallery is None else None,
            )
            arrays = sides.queries[start : start + batch], sides.items, relation
            options: Any = {"similarity": self.similarity, "threads": self.threads}
            square_q, key_T = np.ones(len(row_q)), threshold_T
            if self.similarity == "cosine":  # if the score is s, the key is s·|s|·dot(q, q)
                square_q, key_T = _squares(arrays[0]), threshold_T * np.abs(threshold_T)
            offsets, key_M, _ = _native.find_positives(*arrays, **options)
            number_q = np.diff(offsets).astype(np.int64)
            identity_M, square_M = (
                np.repeat(of_query[row_q], number_q),
                np.repeat(square_q, number_q),
            )
            _add_accepted(positives, identity_M, key_T, key_M / square_M)
            accepted = []
            # The core is slow only when many keys are low, so high and low keys are counted
            # separately.
            for key_t in np.split(key_T, [-_LOW]):
                t = len(key_t)
                number_qt = _native.count_negatives(
                    *arrays,
                    **options,
                    ties="index",
                    metrics=["map"],  # to get all counts
                    offsets=np.arange(0, t * len(row_q) + 1, t, dtype=np.uint64),
                    keys=np.outer(square_q, key_t).reshape(-1),
                    # Thresholds come after all items, to accept equal keys.
                    indices=np.tile(len(label_G) + np.arange(t, dtype=np.uint64), len(row_q)),
                    counts=np.zeros(len(row_q) * (t + 1), np.uint64),
                ).reshape(-1, t + 1)
                accepted.append(np.cumsum(number_qt[:, :t], axis=1))
            every_q = len(label_G) - matches_Q[row_q]
            np.add.at(
                negatives, of_query[row_q], np.column_stack([*accepted, every_q]).astype(np.float64)
            )


def depth_for(shares: Sequence[float]) -> int:
    """Return the number of thresholds needed to reach 2⁻¹² and a sixteenth of each FAR."""
    return int(np.ceil(2 * np.log2(16 / min([*shares, 2.0**-8]))))


def resample(name: str, models: Sequence[AcceptedPairs], seed: int) -> _Floats:
    """Draw identities with replacement, shared by all models; return (R, models) deviations of a
    metric.
    """
    n = len(models[0].positives)
    rng = np.random.default_rng(seed)
    parts = []
    for rows in batches(RESAMPLES, n):
        cell_RI = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        weight_RI = (
            np.bincount(cell_RI.reshape(-1), minlength=rows * n).reshape(rows, n).astype(np.float64)
        )
        parts.append(
            np.stack([_measure(name, *model.curves(weight_RI)) for model in models], axis=1)
        )
    values = np.concatenate(parts)
    values = values[np.isfinite(values).all(axis=1)]
    if n < 2 or len(values) == 0:
        raise ValueError(
            f"the pairs have {n} identities; expected 2 or more, and more positive pairs"
        )
    measured: _Floats = values - [
        _measure(name, *model.curves(np.ones((1, n))))[0] for model in models
    ]
    return measured


def count_extreme(name: str, mine: AcceptedPairs, theirs: AcceptedPairs, seed: int) -> int:
    """Count the permutations with a difference at least as large as the observed difference, in
    absolute value.
    """
    n = len(mine.positives)
    rng = np.random.default_rng(seed)

    def distances(is_swapped_RI: _Floats) -> _Floats:
        ours = _measure(name, *mine.swapped_curves(theirs, is_swapped_RI))
        return np.abs(ours - _measure(name, *theirs.swapped_curves(mine, is_swapped_RI)))

    least = distances(np.zeros((1, n)))[0] * (1 - 1e-12)
    drawn = (rng.integers(0, 2, (rows, n)).astype(np.float64) for rows in batches(PERMUTATIONS, n))
    return sum(int(np.count_nonzero(distances(is_swapped_RI) >= least)) for is_swapped_RI in drawn)


def _add_accepted(
    counts: _Floats, identity_M: _Rows, threshold_T: _Floats, score_M: _Floats
) -> None:
    """Add accepted pairs to the identities' counts (I, T + 1); thresholds must be in descending
    order.
    """
    T = len(threshold_T)
    # Find the first threshold that accepts the pair.
    first_M = T - np.searchsorted(threshold_T[::-1], score_M, "right")
    cells = np.bincount(identity_M * (T + 1) + first_M, minlength=counts.size)
    counts += np.cumsum(cells.reshape(counts.shape), axis=1)


def _rates(accepted_RT: _Floats) -> _Floats:
    """Make rows nondecreasing and divide them by the last column; NaN if the last column is 0."""
    ascending = np.maximum.accumulate(np.maximum(accepted_RT, 0), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rates: _Floats = ascending / ascending[:, -1:]
    return rates


def _measure(name: str, far_RT: _Floats, tar_RT: _Floats) -> _Floats:
    """Return a metric (R,), one value per curve; NaN if the curve is NaN."""
    R = np.arange(len(far_RT))

    def between(x_RT: _Floats, part_R: _Floats) -> _Floats:
        """Interpolate each curve between the columns `at_R` - 1 and `at_R`."""
        found: _Floats = x_RT[R, at_R - 1] + part_R * (x_RT[R, at_R] - x_RT[R, at_R - 1])
        return found

    with np.errstate(invalid="ignore", divide="ignore"):
        if name in ("eer", "auc"):
            far_RT, tar_RT = (np.pad(rates, ((0, 0), (1, 0))) for rates in (far_RT, tar_RT))
        if name == "auc":
            value_R = (np.diff(far_RT) * (tar_RT[:, 1:] + tar_RT[:, :-1])).sum(axis=1) / 2
        elif name == "eer":
            both_RT = far_RT + tar_RT
            at_R = np.maximum(np.argmax(both_RT >= 1, axis=1), 1)
            before_R = both_RT[R, at_R - 1]
            value_R = between(far_RT, (1 - before_R) / (both_RT[R, at_R] - before_R))
        else:
            share = far_of(name)
            at_R = np.clip((far_RT <= share).sum(axis=1), 1, far_RT.shape[1] - 1)
            low_R, high_R = far_RT[R, at_R - 1], far_RT[R, at_R]
            logarithmic_R = np.log(share / low_R) / np.log(high_R / low_R)
            part_R = np.where(low_R > 0, logarithmic_R, share / high_R)
            value_R = between(tar_RT, np.clip(part_R, 0, 1))
    return np.where(np.isfinite(far_RT[:, -1] + tar_RT[:, -1]), value_R, np.nan)


def _squares(queries: npt.NDArray[np.floating]) -> _Floats:
    """Return dot(q, q) (Q,), with rows scaled like for the cosine (see
    docs/reference/metrics.md).
    """
    x = queries.astype(np.float64)
    if queries.dtype == np.float64:
        x = np.ldexp(x, 1 - np.frexp(np.abs(x).max(axis=1, keepdims=True))[1])
    squares: _Floats = np.einsum("qd,qd->q", x, x)
    return squares
