"""Lists of gallery items per query: matches, which can be graded, and items to ignore.

Shapes: `Q` queries, `G` gallery, `C` labels, `M` listed (query, item) pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.conversion import to_array

Lists = tuple[npt.ArrayLike, npt.ArrayLike]

_MOST_ITEMS = 2**32
_MOST_GRADE = 2.0**53


@dataclass(frozen=True, slots=True, eq=False)
class ListedItems:
    """Items listed per query, in ascending order."""

    offsets: npt.NDArray[np.uint64]  # (Q + 1,) the start of the items per query, then the end
    items: npt.NDArray[np.uint32]  # (M,) indices in the gallery
    grades: npt.NDArray[np.float64] | None = None  # (M,) above 0; None if all items count equally

    def check_bounds(self, name: str, queries: int, gallery: int) -> None:
        """Raise a ValueError if there are more or fewer lists than queries, or an index is out of
        range.
        """
        if (came := len(self.offsets)) != queries + 1:
            raise ValueError(
                f"{name} has {came} offsets; expected {queries + 1}, one per query and the end"
            )
        absent = self.items >= gallery
        if absent.any():
            query_M = np.repeat(np.arange(queries), np.diff(self.offsets).astype(np.int64))
            _check_items(
                absent, self.items, query_M, name, f"; expected indices from 0 to {gallery - 1}"
            )


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Relevance(ListedItems):
    """Lists of matches per query. Use this if matches are not given by a single label per item.

    The lists are checked once and sorted. Note that matches with grade 0 are dropped.

    Args:
        offsets: (Q + 1,) integers from 0 to M. Query q matches the gallery items
            ``indices[offsets[q]:offsets[q + 1]]``.
        indices: (M,) integers; indices of queries if a gallery is not used. A query must not list
            an item twice.
        grades: (M,) numbers from 0 to 2**53, used as gains in nDCG. An item with grade 0 does not
            match.
        ignored: ``(offsets, indices)`` of items to exclude from the rankings.

    Raises:
        TypeError: if the dtype of an array is wrong.
        ValueError: if offsets decrease or do not go from 0 to M, a query lists a negative index or
            an index twice, or a grade is out of range.
    """

    ignored: ListedItems | None = None

    def __init__(
        self,
        offsets: npt.ArrayLike,
        indices: npt.ArrayLike,
        grades: npt.ArrayLike | None = None,
        *,
        ignored: Lists | None = None,
    ) -> None:
        listed = check_lists(offsets, indices, grades, name="Relevance")
        for field in fields(listed):
            object.__setattr__(self, field.name, getattr(listed, field.name))
        object.__setattr__(self, "ignored", check_ignored(ignored))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def indices(self) -> npt.NDArray[np.uint32]:
        """The (M,) gallery indices of the matches."""
        return self.items


def check_ignored(ignored: object) -> ListedItems | None:
    """Check the ``(offsets, indices)`` of items to exclude."""
    if ignored is None:
        return None
    if not isinstance(ignored, (tuple, list)):
        raise TypeError(f"ignored is a {type(ignored).__name__}; expected (offsets, indices)")
    if len(ignored) != 2:
        raise TypeError(f"ignored is {len(ignored)} arrays; expected (offsets, indices)")
    return check_lists(*ignored, name="ignored")


def check_lists(
    offsets: object, indices: object, grades: object = None, *, name: str
) -> ListedItems:
    """Check lists of items, sort the lists, and drop items with grade 0."""
    starts, items = _integers(offsets, f"{name}'s offsets"), _integers(indices, f"{name}'s indices")
    if (
        len(starts) == 0
        or starts[0] != 0
        or starts[-1] != len(items)
        or (starts[1:] < starts[:-1]).any()
    ):
        given = f"from {starts[0]} to {starts[-1]}" if len(starts) else "without an entry"
        raise ValueError(
            f"{name} has offsets {given}; expected nondecreasing offsets from 0 to {len(items)}"
        )
    ends = starts.astype(np.int64)
    query_M = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    wrong = (items < 0) | (items >= _MOST_ITEMS)
    _check_items(wrong, items, query_M, name, "; expected gallery indices, at least 0")
    items = items.astype(np.uint32)
    checked = None if grades is None else _grades(grades, name, query_M)
    if ((items[1:] <= items[:-1]) & (query_M[1:] == query_M[:-1])).any():
        order = np.lexsort((items, query_M))
        items, checked = items[order], None if checked is None else checked[order]
        twice = (items[1:] == items[:-1]) & (query_M[1:] == query_M[:-1])
        _check_items(twice, items, query_M, name, " twice; expected distinct items per query")
    if checked is not None and not checked.all():
        matches = checked > 0
        sizes = np.bincount(query_M[matches], minlength=len(ends) - 1)
        ends, items, checked = (
            np.concatenate([[0], np.cumsum(sizes)]),
            items[matches],
            checked[matches],
        )
    return ListedItems(ends.astype(np.uint64), np.ascontiguousarray(items), checked)


def _check_items(
    wrong_M: npt.NDArray[np.bool_], items: Any, query_M: Any, name: str, expected: str
) -> None:
    if wrong_M.any():
        at = int(np.argmax(wrong_M))
        raise ValueError(f"{name} lists item {items[at]} for query {query_M[at]}{expected}")


def _integers(x: object, name: str) -> npt.NDArray[Any]:
    array = to_array(x, name)
    if array.ndim != 1:
        raise ValueError(f"{name} have shape {array.shape}; expected one dimension")
    if array.dtype.kind not in "iu" and len(array):
        raise TypeError(f"{name} have dtype {array.dtype}; expected integers")
    return array if len(array) else array.astype(np.int64)


def _grades(x: object, name: str, query_M: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    array = to_array(x, f"{name}'s grades")
    if array.dtype.kind not in "iufb":
        raise TypeError(f"{name}'s grades have dtype {array.dtype}; expected numbers")
    if array.shape != query_M.shape:
        raise ValueError(
            f"{name}'s grades have shape {array.shape}; expected {query_M.shape}, one per index"
        )
    grades = array.astype(np.float64)
    wrong = ~((grades >= 0) & (grades <= _MOST_GRADE))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"{name} has the grade {grades[at]} for query {query_M[at]}; expected 0 to 2**53"
        )
    return grades


def relevance_from_labels(
    labels: npt.NDArray[Any] | Sequence[Iterable[Any]],
    gallery_labels: npt.NDArray[Any] | Sequence[Iterable[Any]] | None = None,
    *,
    graded: bool = False,
) -> Relevance:
    """List the items that share a label with each query. Use this if an item can have more than one
    label.

    Args:
        labels: (Q, C) booleans, or 0 and 1, with a column per label; or Q sets (or collections) of
            hashable labels.
        gallery_labels: the labels per item, in the same form. By default, the queries are searched.
            Note that queries also list themselves, but `evaluate` will exclude this.
        graded: whether to use the number of shared labels as the grade.

    Raises:
        TypeError: if labels are neither such an array nor collections, or only one of the arguments
            is an array.
        ValueError: if an array contains entries other than 0 and 1, or the numbers of columns
            differ.
    """
    sides = {"labels": _read(labels, "labels")}
    if gallery_labels is not None:
        sides["gallery_labels"] = _read(gallery_labels, "gallery_labels")
    codes: dict[Any, int] = {}
    (query_offsets, query_codes), *_ = found = [
        _label_sets(of, name, codes) for name, of in sides.items()
    ]
    item_offsets, item_codes = found[-1]
    kinds = [of.shape[1:] if isinstance(of, np.ndarray) else None for of in sides.values()]
    if (kinds[0] is None) != (kinds[-1] is None):
        raise TypeError(
            "only one of labels and gallery_labels is an array; expected both or neither"
        )
    if kinds[0] != kinds[-1]:
        shapes = [of.shape for of in sides.values()]
        raise ValueError(
            f"gallery_labels has shape {shapes[1]}; expected {shapes[0][1]} columns like labels"
        )
    item_E = np.repeat(np.arange(len(item_offsets) - 1), np.diff(item_offsets))
    order = np.argsort(item_codes, kind="stable")
    items_by_code = item_E[order]
    n_codes = 1 + max(
        (int(side.max()) for side in (query_codes, item_codes) if len(side)), default=0
    )
    starts = np.searchsorted(item_codes[order], np.arange(n_codes + 1))
    matches, counts = [], []
    for start, end in itertools.pairwise(query_offsets):
        postings = [items_by_code[starts[c] : starts[c + 1]] for c in query_codes[start:end]]
        joined = np.concatenate(postings) if postings else items_by_code[:0]
        items, shared = np.unique(joined, return_counts=True)
        matches.append(items)
        counts.append(shared)
    offsets = np.cumsum([0, *map(len, matches)], dtype=np.int64)
    return Relevance(offsets, np.concatenate(matches), np.concatenate(counts) if graded else None)


def _read(x: Any, name: str) -> Any:
    """Return lists, tuples and arrays unchanged; convert other containers to a list or an array."""
    if x is None or isinstance(x, (list, tuple, np.ndarray)):
        return x
    if isinstance(x, Iterator):
        return list(x)
    array = to_array(x, name)
    return array.tolist() if array.dtype.kind == "O" else array


def _label_sets(
    x: Any, name: str, codes: dict[Any, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the start of the labels per item (and the end), and the labels' codes; add new labels
    to `codes`.
    """
    if isinstance(x, np.ndarray) and x.dtype.kind in "biuf":
        if x.ndim != 2 or len(x) == 0:
            raise ValueError(
                f"{name} has shape {x.shape}; expected (items, labels), a column per label"
            )
        if not np.isin(x, (0, 1)).all():
            raise ValueError(
                f"{name} has entries other than 0 and 1; expected 1 if an item has the label"
            )
        item, label = np.nonzero(x)
        return np.searchsorted(item, np.arange(len(x) + 1)), label
    offsets, found = [0], list[int]()
    for i, labels in enumerate(x):
        if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
            raise TypeError(
                f"{name} has {labels!r} at index {i}; expected a set of labels: to use single "
                "labels, pass them to evaluate(x, labels)"
            )
        found.extend(codes.setdefault(label, len(codes)) for label in set(labels))
        offsets.append(len(found))
    if len(offsets) == 1:
        raise ValueError(f"{name} is empty; expected a set of labels per item")
    return np.array(offsets, np.int64), np.array(found, np.int64)
