"""Lists of gallery items for each query: offsets and indices in two arrays, and grades where given.

Shapes: `Q` queries, `G` gallery, `M` listed pairs of a query and an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.conversion import to_array

_MOST_GRADE = 2.0**53


@dataclass(frozen=True, slots=True)
class CheckedLists:
    """Items listed for each query, ascending, as the core takes them.

    Attributes:
        offsets: (Q + 1,) the start of each query's items, and the end of the last's.
        items: (M,) indices in the gallery.
        grades: (M,) numbers above 0; None if all count alike.
    """

    offsets: npt.NDArray[np.uint64]
    items: npt.NDArray[np.uint32]
    grades: npt.NDArray[np.float64] | None

    def within(self, start: int, stop: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Return offsets and items of a part of the gallery, whose first item then has the index 0."""
        inside = (self.items >= start) & (self.items < stop)
        before = np.concatenate([[0], np.cumsum(inside)]).astype(np.uint64)
        return before[self.offsets], (self.items[inside] - start).astype(np.uint32)


def check_lists(x: object, name: str, queries: int, gallery: int, *, graded: bool = False) -> CheckedLists:
    """Check lists of items for each query, sort them, and drop items of grade 0.

    Args:
        x: ``(offsets, indices)``, or with `graded` also ``(offsets, indices, grades)``.
        name: the argument's name in errors.
        queries: Q.
        gallery: G.
        graded: whether grades are accepted.

    Raises:
        TypeError: if it is no such tuple, or an array has the wrong dtype.
        ValueError: if lengths don't match, offsets don't ascend from 0 to M, an item is absent or listed twice, or a
            grade is negative or not finite.
    """
    form = "(offsets, indices) or (offsets, indices, grades)" if graded else "(offsets, indices)"
    if not isinstance(x, (tuple, list)) or len(x) not in ((2, 3) if graded else (2,)):
        came = f"{len(x)} arrays" if isinstance(x, (tuple, list)) else f"a {type(x).__name__}"
        raise TypeError(f"{name} is {came}; expected {form}")
    offsets, items = (_integers(array, f"{name}'s {part}") for array, part in zip(x, ("offsets", "indices")))
    if len(offsets) != queries + 1:
        raise ValueError(
            f"{name} has {len(offsets)} offsets; expected {queries + 1}: the start of each query's items, and the end"
        )
    if offsets[0] != 0 or offsets[-1] != len(items) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(
            f"{name} has offsets from {offsets[0]} to {offsets[-1]}; expected them to ascend from 0 to "
            f"{len(items)}, the number of indices"
        )
    ends = offsets.astype(np.int64)
    query_M = np.repeat(np.arange(queries, dtype=np.int64), np.diff(ends))
    absent = (items < 0) | (items >= gallery)
    if absent.any():
        at = int(np.argmax(absent))
        raise ValueError(
            f"{name} lists item {items[at]} for query {query_M[at]}; expected indices from 0 to {gallery - 1}"
        )
    items = items.astype(np.uint32)
    grades = _grades(x[2], name, query_M) if len(x) == 3 else None
    descends = (items[1:] <= items[:-1]) & (query_M[1:] == query_M[:-1])
    if descends.any():
        order = np.lexsort((items, query_M))
        items, grades = items[order], None if grades is None else grades[order]
        twice = (items[1:] == items[:-1]) & (query_M[1:] == query_M[:-1])
        if twice.any():
            at = int(np.argmax(twice))
            raise ValueError(
                f"{name} lists item {items[at]} for query {query_M[at]} twice; expected each item once a query"
            )
    if grades is not None and not grades.all():
        matches = grades > 0
        sizes = np.bincount(query_M[matches], minlength=queries)
        ends, items, grades = np.concatenate([[0], np.cumsum(sizes)]), items[matches], grades[matches]
    return CheckedLists(ends.astype(np.uint64), np.ascontiguousarray(items), grades)


def _integers(x: Any, name: str) -> npt.NDArray[Any]:
    array = to_array(x, name)
    if array.ndim != 1:
        raise ValueError(f"{name} have shape {array.shape}; expected one dimension")
    if array.dtype.kind not in "iu" and len(array):
        raise TypeError(f"{name} have dtype {array.dtype}; expected integers")
    return array if len(array) else array.astype(np.int64)


def _grades(x: Any, name: str, query_M: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    array = to_array(x, f"{name}'s grades")
    if array.dtype.kind not in "iufb":
        raise TypeError(f"{name}'s grades have dtype {array.dtype}; expected numbers")
    if array.shape != query_M.shape:
        raise ValueError(f"{name}'s grades have shape {array.shape}; expected {query_M.shape}, one an index")
    grades = array.astype(np.float64)
    wrong = ~((grades >= 0) & (grades <= _MOST_GRADE))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"{name} has the grade {grades[at]} for query {query_M[at]}; expected finite numbers from 0 to 2**53"
        )
    return grades
