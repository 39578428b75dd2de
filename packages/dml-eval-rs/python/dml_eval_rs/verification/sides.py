"""Checked arguments of a verification, and the numbers of its pairs.

Shapes: `Q` queries, `G` gallery, `D` dim, `W` bytes per code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.matches.relation import relate
from dml_eval_rs.matches.relevance import Relevance
from dml_eval_rs.metrics.names import check_metrics, family_of

Codes = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Asked:
    """The metrics to measure.

    Attributes:
        names: distinct names, in the order asked.
        far: name → FAR, of the names ``"tar@far=X"``.
    """

    names: list[str]
    far: dict[str, float]

    @property
    def shares(self) -> list[float]:
        """The distinct FARs."""
        return list(dict.fromkeys(self.far.values()))


@dataclass(frozen=True, slots=True)
class PairSides:
    """Both sides of the pairs without junk: items, and labels and groups as dense codes.

    Attributes:
        queries, gallery: (Q, D) and (G, D) floats, or (Q, W) and (G, W) codes; no gallery: the queries are their own.
        labels, gallery_labels, groups, gallery_groups: (Q,) and (G,).
        kept: the rows of the items given that aren't junk; None for all.
        given: the numbers of queries and items given, with junk.
    """

    queries: npt.NDArray[Any]
    labels: Codes
    gallery: npt.NDArray[Any] | None = None
    gallery_labels: Codes | None = None
    groups: Codes | None = None
    gallery_groups: Codes | None = None
    kept: npt.NDArray[np.uintp] | None = None
    given: tuple[int, int] = (0, 0)

    @property
    def items(self) -> npt.NDArray[Any]:
        """The rows that queries are compared with."""
        return self.queries if self.gallery is None else self.gallery

    @property
    def codes(self) -> tuple[Codes, Codes]:
        """The labels of both sides, those of the queries twice if they are their own gallery."""
        return self.labels, self.labels if self.gallery_labels is None else self.gallery_labels

    def same_group(self, a_M: Any, b_M: Any) -> Any:
        """Return (M,): whether pairs of rows of both sides have the same group."""
        if self.groups is None:
            return False
        of_items = self.groups if self.gallery_groups is None else self.gallery_groups
        return self.groups[a_M] == of_items[b_M]

    def count_pairs(self) -> tuple[int, int]:
        """Return the numbers of positive and of negative pairs."""
        labels = [of for of in (self.labels, self.gallery_labels) if of is not None]
        groups = [of for of in (self.groups, self.gallery_groups) if of is not None]
        n, same_label, left_out = len(self.labels), _count_equal(labels), 0
        if groups:
            factor = 1 + max(int(of.max()) for of in groups)
            both = (a.astype(np.int64) * factor + b for a, b in zip(labels, groups))
            left_out = _count_equal(arguments.encode(*both))
        every = n * (n - 1) // 2 if len(labels) == 1 else n * len(labels[1])
        return same_label - left_out, every - same_label


def _count_equal(codes: list[Codes]) -> int:
    """Count pairs of equal codes: of one array, unordered pairs of two places."""
    counts = [np.bincount(of, minlength=1 + max(int(of.max()) for of in codes)) for of in codes]
    if len(counts) == 1:
        return int((counts[0] * (counts[0] - 1) // 2).sum())
    return int(counts[0] @ counts[1])


def check_sides(
    embeddings: object, labels: object, gallery: object, gallery_labels: object, similarity: str
) -> PairSides:
    """Check both sides, and leave out junk.

    Raises:
        TypeError: if an array has the wrong dtype.
        ValueError: if shapes don't match or are empty, or labels list matches or ignored items.
    """
    sides = arguments.to_sides(embeddings, gallery, similarity, ("embeddings", "gallery"))
    if isinstance(labels, Relevance):
        raise ValueError("labels is a Relevance, which lists matches; expected an array or Labels")
    relation = relate(labels, gallery_labels, sides, unmatched="zero")
    if relation.ignored_offsets is not None:
        raise ValueError("labels have ignored items, which verification doesn't leave out; expected none")
    assert relation.labels is not None
    queries, items = sides.queries, sides.gallery
    if relation.kept is not None:
        queries, items = (queries[relation.kept], None) if items is None else (queries, items[relation.kept])
    return PairSides(
        queries,
        relation.labels,
        items,
        relation.gallery_labels,
        relation.groups,
        relation.gallery_groups,
        relation.kept,
        (len(sides.queries), len(sides.items)),
    )


def check_asked(metrics: str | Iterable[str], *, in_folds: bool = False) -> Asked:
    """Check names of metrics; with folds add the accuracy.

    Raises:
        TypeError, ValueError: as `check_metrics`, or if the accuracy came without folds.
    """
    names = check_metrics(metrics, ("verification",))
    if "accuracy" in names and not in_folds:
        raise ValueError(
            "metrics holds 'accuracy', which is measured in folds of given pairs; expected pairs and folds"
        )
    if in_folds and "accuracy" not in names:
        names.append("accuracy")
    return Asked(names, {name: _exact_far(name) for name in names if family_of(name) == "tar@far=X"})


def _exact_far(name: str) -> float:
    """Return X of ``"tar@far=X"``, rounded to nearest: `float` rounds short decimals in the caller's mode."""
    far = Fraction(name.partition("=")[2])
    return (far.numerator << 64) / (far.denominator << 64)
