"""Rank items by how likely the labels are wrong.

Shapes: `N` items, `D` dim, `K` neighbours, `C` classes, `B` ballots (item, class, share of
votes), `P` pairs of classes with confident items, `M` pairs of items.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import COSINE, Progress
from dml_eval_rs.search.hard_negatives import hard_negatives
from dml_eval_rs.search.neighbours import check_finite, knn
from dml_eval_rs.search.votes import add_votes, find_largest

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SuspectLabels:
    """Which labels are probably wrong, see `suspect_labels`.

    Attributes:
        score: (N,) float64 from 0 to 1, where 1 is the most suspicious. Scores of the items that
            confident learning prunes exceed 0.75; no other score exceeds 0.5.
        suggested: (N,) the label with the most votes apart from the item's label, which is
            repeated if no other label has votes.
        duplicates: (M, 2) int64, near-duplicates with different labels, i < j, most similar first.
        distance: (N,) float64, the cosine distance to the k-th neighbour, which is largest for
            outliers; infinite if there are fewer neighbours.
    """

    score: _Floats
    suggested: npt.NDArray[Any]
    duplicates: _Integers = field(repr=False)
    distance: _Floats = field(repr=False)


def suspect_labels(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    k: int = 10,
    groups: npt.ArrayLike | None = None,
    *,
    temperature: float = 0.07,
    duplicate: float = 0.98,
    threads: int | None = None,
    progress: Progress | None = None,
) -> SuspectLabels:
    """Rank items by how much the exact nearest neighbours disagree with the label.

    Use this function to list the labels to check first. The embeddings should be trained without
    these labels, for example on other classes or in folds: a network hides the wrong labels that
    it has memorised.

    The k nearest neighbours n of item i vote: p_i(y) is the share of label y in the sum of the
    weights exp(cos(i, n) / temperature). Confident learning (Northcutt et al. 2021, Confident
    Learning: Estimating Uncertainty in Dataset Labels, section 3) then estimates how many labels
    are wrong:

    - The threshold t_y of class y is the mean of p_i(y) over the items labelled y.
    - C[j, y] counts the items labelled j that are confident of y: p_i(y) ≥ t_y, and p_i(y) is the
      largest such share; if shares are equal, the item's label is preferred, then the least label.
      Row j is scaled, so that the sum is the number of items labelled j.
    - For all j ≠ y, the items labelled j with p_i(y) > p_i(j) are sorted by p_i(y) − p_i(j), and
      the first round(C[j, y]) are pruned ("prune by noise rate").

    The disagreement is d_i = (1 + p_i(y) − p_i(j)) / 2, where j is the item's label and y the
    other label with the most votes. The score is (1 + d_i) / 2 if the item is pruned, otherwise
    d_i / 2. So if confident learning doesn't find an error, the disagreement alone sorts the items.
    The score is a rank rather than a probability. Memory grows with N · k, but not with the number
    of classes.

    Args:
        embeddings: (N, D) floating, see `knn`.
        labels: (N,) integers of any width, booleans or strings; at least two labels must differ.
        k: number of neighbours, 1 to N − 1.
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
    score_N, other_N = _score(code_N, item_NK, similarity_NK, len(class_C), heat)
    return SuspectLabels(
        score=score_N,
        suggested=class_C[other_N],
        duplicates=_find_duplicates(code_N, item_NK, similarity_NK, least),
        distance=np.where(item_NK[:, -1] < 0, np.inf, 1 - similarity_NK[:, -1].astype(np.float64)),
    )


def _score(
    code_N: _Integers,
    item_NK: _Integers,
    similarity_NK: npt.NDArray[Any],
    classes: int,
    temperature: float,
) -> tuple[_Floats, _Integers]:
    """Return the scores, and the class with the most votes among the others."""
    n = len(code_N)
    # Dividing by the largest weight prevents overflow; missing neighbours have the weight 0.
    closeness_NK = similarity_NK.astype(np.float64) - similarity_NK[:, :1]
    weight_NK = np.exp(np.where(item_NK < 0, -np.inf, closeness_NK) / temperature)
    item_B, class_B, share_B = add_votes(code_N[item_NK], weight_NK, classes)
    share_B = share_B / weight_NK.sum(axis=1).clip(min=1)[item_B]

    is_own_B = class_B == code_N[item_B]
    own_N: npt.NDArray[Any] = np.bincount(item_B[is_own_B], share_B[is_own_B], n)
    highest_B = find_largest(item_B, np.where(is_own_B, -1, share_B))
    highest_B = highest_B[~is_own_B[highest_B] & (share_B[highest_B] > 0)]
    other_N, share_N = code_N.copy(), np.zeros(n)
    other_N[item_B[highest_B]], share_N[item_B[highest_B]] = class_B[highest_B], share_B[highest_B]

    disagreement_N = (1 + share_N - own_N) / 2
    return (disagreement_N + _prune(code_N, item_B, class_B, share_B, own_N, classes)) / 2, other_N


def _prune(
    code_N: _Integers,
    item_B: _Integers,
    class_B: _Integers,
    share_B: _Floats,
    own_N: _Floats,
    classes: int,
) -> npt.NDArray[np.bool_]:
    """Return the items that confident learning removes, pruning by noise rate."""
    size_C = np.bincount(code_N, minlength=classes)
    threshold_C = np.bincount(code_N, own_N, classes) / size_C
    label_B = code_N[item_B]
    is_confident_B = (share_B > 0) & (share_B >= threshold_C[class_B])
    # The item's label wins if shares only differ by rounding.
    preferred_B = np.where(is_confident_B, share_B + 1e-9 * (class_B == label_B), -1)
    counted_B = find_largest(item_B, preferred_B)
    counted_B = counted_B[is_confident_B[counted_B]]
    pair_P, count_P = np.unique(
        label_B[counted_B] * classes + class_B[counted_B], return_counts=True
    )
    confident_C = np.bincount(label_B[counted_B], minlength=classes)
    label_P = pair_P // classes
    moved_P = np.rint(count_P * size_C[label_P] / confident_C[label_P]).astype(np.int64)

    # Rank each pair's items by the margin, and remove the first ones.
    tried_B = np.flatnonzero(share_B > own_N[item_B])
    pair_B = label_B[tried_B] * classes + class_B[tried_B]
    margin_B = share_B[tried_B] - own_N[item_B[tried_B]]
    order = np.lexsort((item_B[tried_B], -margin_B, pair_B))
    start = np.searchsorted(pair_B[order], pair_B[order])
    place_P = np.searchsorted(pair_P, pair_B[order]).clip(max=len(pair_P) - 1)
    most = np.where(pair_P[place_P] == pair_B[order], moved_P[place_P], 0) if len(pair_P) else 0
    is_pruned_N = np.zeros(len(code_N), np.bool_)
    is_pruned_N[item_B[tried_B[order[np.arange(len(order)) - start < most]]]] = True
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
