"""Rank items by how likely the labels are wrong.

Shapes: `N` items, `D` dim, `K` neighbours, `C` classes, `B` ballots (item, class, share of
votes), `P` pairs of classes with confident items, `M` pairs of items.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress
from dml_eval_rs.search.hard_negatives import hard_negatives
from dml_eval_rs.search.neighbours import check_finite, knn
from dml_eval_rs.search.votes import add_votes, find_largest

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-9  # shares that differ by less are equal
_SMOOTHING = 0.05  # added to shares, so that a single stray vote doesn't count as much as many


@dataclass(frozen=True, slots=True)
class SuspectLabels:
    """Which labels are probably wrong, see `suspect_labels`.

    Attributes:
        score: (N,) float64 from 0 to 1, where 1 is the most suspicious; above 0.5 if the suggested
            label has more votes than the item's label, 0.5 without neighbours.
        pruned: (N,) bool, the items that confident learning removes.
        suggested: (N,) the label with the most votes apart from the item's label, which is
            repeated if no other label has votes.
        duplicates: (M, 2) int64, near-duplicates with different labels, i < j, most similar first.
        distance: (N,) float64, the cosine distance to the k-th neighbour, which is largest for
            outliers; infinite if there are fewer neighbours.
    """

    score: _Floats
    pruned: npt.NDArray[np.bool_] = field(repr=False)
    suggested: npt.NDArray[Any] = field(repr=False)
    duplicates: _Integers = field(repr=False)
    distance: _Floats = field(repr=False)


def suspect_labels(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    k: int = 20,
    groups: npt.ArrayLike | None = None,
    *,
    temperature: float = 0.1,
    duplicate: float = 0.98,
    threads: int | None = None,
    progress: Progress | None = None,
) -> SuspectLabels:
    """Rank items by how much the exact nearest neighbours disagree with the label.

    Use this function to list the labels to check first. The embeddings should be trained without
    these labels, for example on other classes or in folds: a network hides the wrong labels that
    it has memorised.

    The k nearest neighbours n of item i vote: p_i(y) is the share of label y in the sum of the
    weights exp(cos(i, n) / temperature). If j is the item's label, and y the other label with the
    most votes, the score is (p_i(y) + 0.05) / (p_i(y) + p_i(j) + 0.1).

    Confident learning (Northcutt et al. 2021, Confident Learning: Estimating Uncertainty in Dataset
    Labels, section 3) estimates on these votes how many labels of each class are wrong, and prunes
    these items:

    - The threshold t_y of class y is the mean of p_i(y) over the items labelled y.
    - C[j, y] counts the items labelled j that are confident of y: p_i(y) ≥ t_y, and p_i(y) is the
      largest such share; if shares are equal, the item's label is preferred, then the least label.
      Row j is scaled, so that the sum is the number of items labelled j.
    - For all j ≠ y, the items labelled j with p_i(y) > p_i(j) are sorted by p_i(y) − p_i(j), and
      the first round(C[j, y]) are pruned ("prune by noise rate").

    Use the score to decide what to check first, and `pruned` to estimate how many labels are wrong:
    docs/guide/suspect-labels.md in the repository measures both. Memory grows with N · k, but not
    with the number of classes.

    Args:
        embeddings: (N, D) floating, see `knn`.
        labels: (N,) integers of any width, booleans or strings; at least two labels must differ.
        k: number of neighbours, 1 to N − 1; choose at least the size of a typical class.
        groups: (N,) integers, booleans or strings, for example the folder or the camera; at least
            two groups must differ. If given, only items of other groups vote, since the labels of
            a group may be wrong together.
        temperature: above 0. If this is large, all neighbours have equal weights.
        duplicate: minimum cosine of near-duplicates, -1 to 1; only neighbours are compared.
        threads, progress: see `knn`; progress is not reported if there are groups.

    Raises:
        TypeError, ValueError, KeyboardInterrupt: as `knn`, or if all labels or all groups are
            equal, or if `temperature` or `duplicate` is out of range.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import suspect_labels
        >>> x = np.array([[1, 0], [0.9, 0.1], [0.8, 0.1], [0, 1], [0.1, 0.9]], dtype=np.float32)
        >>> found = suspect_labels(x, ["cat", "cat", "dog", "dog", "dog"], k=2)
        >>> int(found.score.argmax()), str(found.suggested[2])
        (2, 'cat')
    """
    heat, least = check_finite(temperature, "temperature"), check_finite(duplicate, "duplicate")
    if heat <= 0:
        raise ValueError(f"temperature is {heat}; expected a number above 0")
    if not -1 <= least <= 1:
        raise ValueError(f"duplicate is {least}; expected a cosine from -1 to 1")
    x_ND = arguments.check_rows(embeddings, "embeddings", COSINE, "items")
    label_N = arguments.partition(labels, "labels", len(x_ND))
    class_C, code_N = np.unique(label_N, return_inverse=True)
    if len(class_C) == 1:
        raise ValueError(f"all {len(code_N)} labels are equal; expected at least two classes")
    if groups is None:
        similarity_NK, item_NK = knn(
            x_ND, None, k, exclude_self=True, threads=threads, progress=progress
        )
    else:
        group_N = arguments.partition(groups, "groups", len(x_ND))
        if len(np.unique(group_N)) == 1:
            raise ValueError(
                f"all {len(group_N)} groups are equal, but only items of other groups vote; "
                "omit groups"
            )
        similarity_NK, item_NK = hard_negatives(x_ND, group_N, k, threads=threads)
    votes = _Votes.collect(code_N, item_NK, similarity_NK, heat)
    return SuspectLabels(
        score=(votes.highest + _SMOOTHING) / (votes.highest + votes.own + 2 * _SMOOTHING),
        pruned=votes.prune(code_N),
        suggested=class_C[votes.other],
        duplicates=_find_duplicates(code_N, item_NK, similarity_NK, least),
        distance=np.where(item_NK[:, -1] < 0, np.inf, 1 - similarity_NK[:, -1].astype(np.float64)),
    )


class _Votes(NamedTuple):
    """The votes for all items and classes, as shares."""

    item: _Integers  # (B,) ascending
    label: _Integers  # (B,) the class that receives the votes
    share: _Floats  # (B,)
    own: _Floats  # (N,) the share of the item's label
    other: _Integers  # (N,) the other class with the most votes, or the item's if there is none
    highest: _Floats  # (N,) the share of `other`, or 0 if there is none

    @classmethod
    def collect(
        cls,
        code_N: _Integers,
        item_NK: _Integers,
        similarity_NK: npt.NDArray[Any],
        temperature: float,
    ) -> _Votes:
        """Add the votes of neighbours; an index of -1 means that a neighbour is missing."""
        # Dividing by the largest weight prevents overflow; missing neighbours have the weight 0.
        closeness_NK = similarity_NK.astype(np.float64) - similarity_NK[:, :1]
        weight_NK = np.exp(np.where(item_NK < 0, -np.inf, closeness_NK) / temperature)
        item_B, label_B, sum_B = add_votes(code_N[item_NK], weight_NK, int(code_N.max()) + 1)
        share_B = sum_B / weight_NK.sum(axis=1).clip(min=1)[item_B]

        is_own_B = label_B == code_N[item_B]
        own_N: npt.NDArray[Any] = np.bincount(item_B[is_own_B], share_B[is_own_B], len(code_N))
        first_B = find_largest(item_B, np.where(is_own_B, -1, share_B))
        first_B = first_B[~is_own_B[first_B] & (share_B[first_B] > 0)]
        other_N, highest_N = code_N.copy(), np.zeros(len(code_N))
        other_N[item_B[first_B]], highest_N[item_B[first_B]] = label_B[first_B], share_B[first_B]
        return cls(item_B, label_B, share_B, own_N, other_N, highest_N)

    def prune(self, code_N: _Integers) -> npt.NDArray[np.bool_]:
        """Return which items confident learning prunes, by noise rate."""
        size_C = np.bincount(code_N)
        threshold_C = np.bincount(code_N, self.own) / size_C
        given_B = code_N[self.item]
        pair_B = given_B * len(size_C) + self.label
        is_confident_B = (self.share > 0) & (self.share >= threshold_C[self.label] - _ROUNDING)
        # The item's label wins if shares only differ by rounding.
        preferred_B = self.share + _ROUNDING * (self.label == given_B)
        first_B = find_largest(self.item, np.where(is_confident_B, preferred_B, -1))
        first_B = first_B[is_confident_B[first_B]]
        pair_P, count_P = np.unique(pair_B[first_B], return_counts=True)
        confident_C = np.bincount(given_B[first_B], minlength=len(size_C))
        class_P = pair_P // len(size_C)
        wrong_P = np.rint(count_P * size_C[class_P] / confident_C[class_P])

        # Sort each pair's items by the margin, and prune the first.
        margin_B = self.share - self.own[self.item]
        tried_B = np.flatnonzero((margin_B > _ROUNDING) & np.isin(pair_B, pair_P))
        tried_B = tried_B[np.lexsort((self.item[tried_B], -margin_B[tried_B], pair_B[tried_B]))]
        pair_T = pair_B[tried_B]
        place_T = np.arange(len(pair_T)) - np.searchsorted(pair_T, pair_T)
        is_pruned_N = np.zeros(len(code_N), np.bool_)
        first_T = place_T < wrong_P[np.searchsorted(pair_P, pair_T)]
        is_pruned_N[self.item[tried_B[first_T]]] = True
        return is_pruned_N


def _find_duplicates(
    code_N: _Integers, item_NK: _Integers, similarity_NK: npt.NDArray[Any], least: float
) -> _Integers:
    """Return pairs of near neighbours with different labels, i < j, most similar first."""
    item, column = np.nonzero((item_NK >= 0) & (similarity_NK >= least))
    other = item_NK[item, column]
    differs = code_N[item] != code_N[other]
    pairs = np.sort(np.stack([item, other], axis=1)[differs], axis=1)
    pairs, first = np.unique(pairs, axis=0, return_index=True)
    similarity = similarity_NK[item, column][differs][first]
    return pairs[np.argsort(-similarity, kind="stable")]
