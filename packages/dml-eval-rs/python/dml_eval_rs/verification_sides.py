"""Checked arguments of a verification, and the numbers of its pairs.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments
from dml_eval_rs.retrieval import check_labels_of_gallery

METRICS = ("tar", "eer", "auc")

_Codes = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PairSides:
    """Both sides of the pairs: items, and labels and groups as dense codes.

    Attributes:
        queries, gallery: (Q, D) and (G, D) floats, or (Q, W) and (G, W) codes; no gallery: the queries are their own.
        labels, gallery_labels, groups, gallery_groups: (Q,) and (G,).
    """

    queries: npt.NDArray[Any]
    labels: _Codes
    gallery: npt.NDArray[Any] | None
    gallery_labels: _Codes | None
    groups: _Codes | None
    gallery_groups: _Codes | None

    def count_pairs(self) -> tuple[int, int]:
        """Return the numbers of positive and of negative pairs."""
        return _count_pairs(self.labels, self.gallery_labels, self.groups, self.gallery_groups)

    def of_both(self, queries: _Codes, gallery: _Codes | None) -> tuple[_Codes, _Codes]:
        """Return codes of both sides, those of the queries twice if they are their own gallery."""
        return queries, queries if gallery is None else gallery

    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """Return all arrays, by which processes that share a verification compare them."""
        return (
            self.queries,
            self.labels,
            self.gallery,
            self.gallery_labels,
            self.groups,
            self.gallery_groups,
        )


def check_sides(
    queries: object,
    name: str,
    labels: object,
    gallery: object,
    gallery_name: str,
    gallery_labels: object,
    groups: object,
    gallery_groups: object,
) -> PairSides:
    """Check the arrays of both sides: codes if the queries' name is ``"codes"``, else embeddings.

    Raises:
        TypeError: if an array has the wrong kind of dtype.
        ValueError: if shapes don't match or are empty, or an array came without the one that belongs to it.
    """
    check_labels_of_gallery(gallery, gallery_labels, None, gallery_name)
    queries_QD, gallery_GD = arguments.both_sides(
        queries, name, gallery, gallery_name, are_codes=name == "codes"
    )
    labels_Q = arguments.labels(labels, "labels", queries_QD, name)
    code_G = None
    if gallery_GD is None:
        (code_Q,) = arguments.encode(labels_Q)
    else:
        labels_G = arguments.labels(gallery_labels, "gallery_labels", gallery_GD, gallery_name)
        code_Q, code_G = arguments.encode(labels_Q, labels_G)
    group_Q, group_G = _check_groups(groups, gallery_groups, queries_QD, name, gallery_GD, gallery_name)
    return PairSides(queries_QD, code_Q, gallery_GD, code_G, group_Q, group_G)


def check_far(far: Iterable[float] | float) -> list[float]:
    """Return distinct shares above 0 and below 1, in the order given."""
    try:
        shares = [float(share) for share in ([far] if isinstance(far, (int, float, np.number)) else far)]
    except (TypeError, ValueError) as error:
        raise TypeError(f"far is {far!r}; expected numbers above 0 and below 1") from error
    for share in shares:
        if not 0 < share < 1:
            raise ValueError(f"far holds {share}; expected shares of negatives above 0 and below 1")
    return list(dict.fromkeys(shares))


def check_metrics(metrics: Sequence[str]) -> set[str]:
    """Return the names of the wanted metrics."""
    if isinstance(metrics, str):
        metrics = (metrics,)
    return {arguments.one_of(name, "each of metrics", METRICS) for name in metrics}


def _check_groups(
    groups: object,
    gallery_groups: object,
    queries: npt.NDArray[Any],
    name: str,
    gallery: npt.NDArray[Any] | None,
    gallery_name: str,
) -> tuple[_Codes | None, _Codes | None]:
    if gallery is None and gallery_groups is not None:
        raise ValueError(f"gallery_groups came without {gallery_name}; expected groups alone")
    if gallery is not None and (groups is None) != (gallery_groups is None):
        given, missing = ("groups", "gallery_groups") if groups is not None else ("gallery_groups", "groups")
        raise ValueError(f"{given} came without {missing}; expected both, or neither")
    if groups is None:
        return None, None
    groups_Q = arguments.labels(groups, "groups", queries, name)
    if gallery is None:
        (group_Q,) = arguments.encode(groups_Q, name="groups")
        return group_Q, None
    groups_G = arguments.labels(gallery_groups, "gallery_groups", gallery, gallery_name)
    group_Q, group_G = arguments.encode(groups_Q, groups_G, name="groups")
    return group_Q, group_G


def _count_pairs(
    code_Q: _Codes, code_G: _Codes | None, group_Q: _Codes | None, group_G: _Codes | None
) -> tuple[int, int]:
    """Return the numbers of positive and of negative pairs."""
    same_label = _count_equal(code_Q, code_G)
    left_out = 0
    if group_Q is not None:
        groups = int(max(group_Q.max(), 0 if group_G is None else group_G.max())) + 1
        both_Q = code_Q.astype(np.uint64) * np.uint64(groups) + group_Q
        both_G = None
        if code_G is not None and group_G is not None:
            both_G = code_G.astype(np.uint64) * np.uint64(groups) + group_G
        left_out = _count_equal(both_Q, both_G)
    n = len(code_Q)
    all_pairs = n * (n - 1) // 2 if code_G is None else n * len(code_G)
    return same_label - left_out, all_pairs - same_label


def _count_equal(a: npt.NDArray[Any], b: npt.NDArray[Any] | None) -> int:
    """Count pairs of equal entries: of one array, unordered pairs of two places."""
    values_a, counts_a = np.unique(a, return_counts=True)
    if b is None:
        return sum(count * (count - 1) // 2 for count in counts_a.tolist())
    values_b, counts_b = np.unique(b, return_counts=True)
    _, in_a, in_b = np.intersect1d(values_a, values_b, assume_unique=True, return_indices=True)
    return sum(i * j for i, j in zip(counts_a[in_a].tolist(), counts_b[in_b].tolist()))
