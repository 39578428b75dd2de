"""Lists of gallery items for each query: offsets and indices in two arrays, and grades where given.

Shapes: `Q` queries, `G` gallery, `M` listed pairs of a query and an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs.conversion import to_array

Lists = tuple[npt.ArrayLike, npt.ArrayLike]

_MOST_ITEMS = 2**32
_MOST_GRADE = 2.0**53


@dataclass(frozen=True, slots=True)
class ListedItems:
    """Items listed for each query, in ascending order.

    Attributes:
        offsets: (Q + 1,) uint64, the start of each query's items, and the end of the last query's.
        items: (M,) uint32, indices in the gallery.
        grades: (M,) float64, above 0; None if all items count alike.
    """

    offsets: npt.NDArray[np.uint64]
    items: npt.NDArray[np.uint32]
    grades: npt.NDArray[np.float64] | None = None

    def check_bounds(self, name: str, queries: int, gallery: int) -> None:
        """Raise a ValueError if the lists aren't those of so many queries, or name an absent gallery item."""
        if len(self.offsets) != queries + 1:
            raise ValueError(
                f"{name} has {len(self.offsets)} offsets; expected {queries + 1}: the start of each query's items, and "
                "the end"
            )
        if len(self.items) and int(self.items.max()) >= gallery:
            at = int(np.argmax(self.items >= gallery))
            raise ValueError(
                f"{name} lists item {self.items[at]} for query {self.query_of(at)}; expected indices from 0 to "
                f"{gallery - 1}"
            )

    def query_of(self, place: int) -> int:
        """Return the query whose list has this place."""
        return int(np.searchsorted(self.offsets, place, "right")) - 1


def check_ignored(ignored: object) -> ListedItems | None:
    """Check ``(offsets, indices)`` of items to exclude."""
    if ignored is None:
        return None
    if not isinstance(ignored, (tuple, list)) or len(ignored) != 2:
        came = (
            f"{len(ignored)} arrays" if isinstance(ignored, (tuple, list)) else f"a {type(ignored).__name__}"
        )
        raise TypeError(f"ignored is {came}; expected (offsets, indices)")
    return check_lists(*ignored, name="ignored")


def check_lists(offsets: object, indices: object, grades: object = None, *, name: str) -> ListedItems:
    """Check lists of items, sort each list, and drop items of grade 0.

    Raises:
        TypeError: if an array has the wrong dtype.
        ValueError: if offsets don't ascend from 0 to M, an index is negative or listed twice for a query, or a grade is
            negative or not finite.
    """
    starts, items = _integers(offsets, f"{name}'s offsets"), _integers(indices, f"{name}'s indices")
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != len(items) or (starts[1:] < starts[:-1]).any():
        given = f"from {starts[0]} to {starts[-1]}" if len(starts) else "without an entry"
        raise ValueError(
            f"{name} has offsets {given}; expected them to ascend from 0 to {len(items)}, the number of indices"
        )
    ends = starts.astype(np.int64)
    query_M = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    wrong = (items < 0) | (items >= _MOST_ITEMS)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"{name} lists item {items[at]} for query {query_M[at]}; expected indices of the gallery, from 0 on"
        )
    items = items.astype(np.uint32)
    checked = None if grades is None else _grades(grades, name, query_M)
    if ((items[1:] <= items[:-1]) & (query_M[1:] == query_M[:-1])).any():
        order = np.lexsort((items, query_M))
        items, checked = items[order], None if checked is None else checked[order]
        twice = (items[1:] == items[:-1]) & (query_M[1:] == query_M[:-1])
        if twice.any():
            at = int(np.argmax(twice))
            raise ValueError(
                f"{name} lists item {items[at]} for query {query_M[at]} twice; expected each item once per query"
            )
    if checked is not None and not checked.all():
        matches = checked > 0
        sizes = np.bincount(query_M[matches], minlength=len(ends) - 1)
        ends, items, checked = np.concatenate([[0], np.cumsum(sizes)]), items[matches], checked[matches]
    return ListedItems(ends.astype(np.uint64), np.ascontiguousarray(items), checked)


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
        raise ValueError(f"{name}'s grades have shape {array.shape}; expected {query_M.shape}, one per index")
    grades = array.astype(np.float64)
    wrong = ~((grades >= 0) & (grades <= _MOST_GRADE))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"{name} has the grade {grades[at]} for query {query_M[at]}; expected finite numbers from 0 to 2**53"
        )
    return grades
