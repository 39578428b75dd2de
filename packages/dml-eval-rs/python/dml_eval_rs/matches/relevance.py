"""Lists of each query's matches, which say more than labels: several labels an item, or graded matches.

Shapes: `Q` queries, `G` gallery, `C` labels, `M` listed pairs of a query and an item.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.lists import ListedItems, Lists, check_ignored, check_lists


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Relevance:
    """The matches of each query, listed: for queries whose matches no single label tells.

    Attributes:
        listed: the matches, each query's in ascending order, without those of grade 0.
        ignored: the items that each query's ranking excludes, or None.
    """

    listed: ListedItems
    ignored: ListedItems | None

    def __init__(
        self,
        offsets: npt.ArrayLike,
        indices: npt.ArrayLike,
        grades: npt.ArrayLike | None = None,
        *,
        ignored: Lists | None = None,
    ) -> None:
        """Check the lists.

        Args:
            offsets: (Q + 1,) integers from 0 to M. Query q matches the gallery items
                ``indices[offsets[q]:offsets[q + 1]]``.
            indices: (M,) integers, each item at most once per query; without a gallery, indices of the queries.
            grades: (M,) numbers from 0 to 2**53, the gains of nDCG. Grade 0 is no match.
            ignored: ``(offsets, indices)`` of items to exclude from each query's ranking.

        Raises:
            TypeError: if an array has the wrong dtype.
            ValueError: if offsets don't ascend from 0 to M, an index is negative or listed twice for a query, or a
                grade is out of range.
        """
        object.__setattr__(self, "listed", check_lists(offsets, indices, grades, name="Relevance"))
        object.__setattr__(self, "ignored", check_ignored(ignored))

    def __len__(self) -> int:
        return len(self.listed.offsets) - 1

    @property
    def offsets(self) -> npt.NDArray[np.uint64]:
        """(Q + 1,) the start of each query's matches, and the end of the last query's."""
        return self.listed.offsets

    @property
    def indices(self) -> npt.NDArray[np.uint32]:
        """(M,) the matches' indices in the gallery."""
        return self.listed.items

    @property
    def grades(self) -> npt.NDArray[np.float64] | None:
        """(M,) the matches' grades; None if all count alike."""
        return self.listed.grades


def relevance_from_labels(
    labels: npt.NDArray[Any] | Sequence[Iterable[Any]],
    gallery_labels: npt.NDArray[Any] | Sequence[Iterable[Any]] | None = None,
    *,
    graded: bool = False,
) -> Relevance:
    """List the items that share a label with each query, for items that have several labels.

    Item g is relevant to query q if their sets of labels meet; its grade is the number of labels in both.

    Args:
        labels: the labels of each query: (Q, C) booleans, or 0 and 1, a column for each label; or Q sets (or other
            collections) of hashable labels.
        gallery_labels: the same for each gallery item; None if the queries search one another. Each query then lists
            itself, too, which `evaluate` excludes.
        graded: whether to grade each match by the number of shared labels.

    Returns:
        The lists, to be passed to `evaluate` instead of labels.

    Raises:
        TypeError: if labels are neither such an array nor collections, or differ in kind between both sides.
        ValueError: if an array has other entries than 0 and 1, or the arrays differ in the number of columns.
    """
    labels, gallery_labels = _read(labels, "labels"), _read(gallery_labels, "gallery_labels")
    codes: dict[Any, int] = {}
    code_sides = [
        _label_sets(side, name, codes)
        for side, name in ((labels, "labels"), (gallery_labels, "gallery_labels"))
        if side is not None
    ]
    if len({isinstance(side, np.ndarray) for side in (labels, gallery_labels) if side is not None}) > 1:
        raise TypeError(
            "one of labels and gallery_labels is an array, and the other is not; expected the same"
        )
    (query_offsets, query_codes), (item_offsets, item_codes) = code_sides[0], code_sides[-1]
    if (
        isinstance(labels, np.ndarray)
        and isinstance(gallery_labels, np.ndarray)
        and labels.shape[1] != gallery_labels.shape[1]
    ):
        raise ValueError(
            f"gallery_labels has shape {gallery_labels.shape}; expected {labels.shape[1]} columns, as labels"
        )
    item_E = np.repeat(np.arange(len(item_offsets) - 1), np.diff(item_offsets))
    order = np.argsort(item_codes, kind="stable")
    items_by_code = item_E[order]
    n_codes = 1 + max((int(side.max()) for side in (query_codes, item_codes) if len(side)), default=0)
    starts = np.searchsorted(item_codes[order], np.arange(n_codes + 1))
    found, counts = [], []
    for start, end in itertools.pairwise(query_offsets):
        postings = [items_by_code[starts[c] : starts[c + 1]] for c in query_codes[start:end]]
        joined = np.concatenate(postings) if postings else items_by_code[:0]
        items, shared = np.unique(joined, return_counts=True)
        found.append(items)
        counts.append(shared)
    offsets = np.concatenate([[0], np.cumsum([len(items) for items in found], dtype=np.int64)])
    return Relevance(offsets, np.concatenate(found), np.concatenate(counts) if graded else None)


def _read(x: Any, name: str) -> Any:
    """Return an array of numbers where one was given in any form, and collections as they came."""
    if x is None or isinstance(x, (list, tuple, np.ndarray)):
        return x
    if isinstance(x, Iterator):
        return list(x)
    array = to_array(x, name)
    return array.tolist() if array.dtype.kind == "O" else array


def _label_sets(
    x: Any, name: str, codes: dict[Any, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the start of each item's labels (and the end of the last), and the labels' codes, added to `codes`."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "biuf":
        if x.ndim != 2 or len(x) == 0:
            raise ValueError(
                f"{name} has shape {x.shape}; expected (items, labels), with a column for each label"
            )
        if not np.isin(x, (0, 1)).all():
            raise ValueError(
                f"{name} has entries other than 0 and 1; expected whether each item has each label"
            )
        item, label = np.nonzero(x)
        return np.searchsorted(item, np.arange(len(x) + 1)), label
    offsets, found = [0], list[int]()
    for i, labels in enumerate(x):
        if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
            raise TypeError(
                f"{name} has {labels!r} at {i}; expected a set of labels: pass single labels to evaluate(x, labels)"
            )
        found.extend(codes.setdefault(label, len(codes)) for label in set(labels))
        offsets.append(len(found))
    if len(offsets) == 1:
        raise ValueError(f"{name} is empty; expected a set of labels for each item")
    return np.array(offsets, np.int64), np.array(found, np.int64)
