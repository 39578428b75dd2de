"""The gallery items that a search may return per query, and searches of queries that share a list
of these.

Shapes: `Q` queries, `G` gallery, `K` neighbours, `L` lists, `M` listed items.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Progress, Sides
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.matches.relevance import ListedItems, Lists, check_lists

AllowedLike = npt.ArrayLike | tuple[Labels, Labels] | Lists | ListedItems

# Queries that share a list of allowed items search a copy of the list's rows, if there are at least
# 8 queries per list, and the list has at most half of the gallery. Otherwise the core skips items
# that are not allowed.
_QUERIES_PER_LIST, _COPIED = 8, 0.5


class Allowed(NamedTuple):
    """Lists of items, in ascending order, and the list per query."""

    offsets: npt.NDArray[np.uint64]  # (L + 1,) the start of the items per list, then the end
    items: npt.NDArray[np.uint32]  # (M,) indices in the gallery
    lists: npt.NDArray[np.uint32]  # (Q,) the number of the query's list


def to_allowed(x: Any, queries: int, items: int) -> Allowed:
    """Check `allowed` of the searches, and list the items.

    Raises:
        TypeError, ValueError: if this is none of the forms that `knn` documents, or does not fit
            the queries and items.
    """
    if isinstance(x, tuple) and any(isinstance(side, Labels) for side in x):
        return _from_labels(x, queries, items)
    if isinstance(x, (tuple, ListedItems)):
        listed = x if isinstance(x, ListedItems) else check_lists(*_pair(x), name="allowed")
        listed.check_bounds("allowed", queries, items)
        return Allowed(listed.offsets, listed.items, np.arange(queries, dtype=np.uint32))
    mask_G = to_array(x, "allowed")
    if mask_G.dtype != np.bool_:
        raise TypeError(
            f"allowed has dtype {mask_G.dtype}; expected booleans, two Labels, or the tuple "
            "(offsets, indices)"
        )
    if mask_G.shape != (items,):
        raise ValueError(
            f"allowed has shape {mask_G.shape}; expected ({items},), one boolean per gallery item"
        )
    found = np.flatnonzero(mask_G).astype(np.uint32)
    return Allowed(np.array([0, len(found)], np.uint64), found, np.zeros(queries, np.uint32))


def _pair(x: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(x) != 2:
        raise TypeError(
            f"allowed is a tuple of {len(x)}; expected two Labels, or (offsets, indices)"
        )
    return x


def _from_labels(x: tuple[Any, ...], queries: int, items: int) -> Allowed:
    """List the items of each label."""
    sides = _pair(x)
    for side, name, length in zip(sides, ("queries", "gallery"), (queries, items)):
        if not isinstance(side, Labels):
            raise TypeError(
                f"allowed has Labels and a {type(side).__name__}; expected Labels for both sides"
            )
        if (
            side.groups is not None
            or side.ignored is not None
            or len(side.junk)
            or len(side.distractors)
        ):
            raise ValueError(
                "allowed has Labels with groups, junk, distractors or ignored items for the "
                f"{name}; expected only ids"
            )
        if len(side) != length:
            raise ValueError(f"allowed has {len(side)} labels for the {name}; expected {length}")
    code_Q, code_G = arguments.encode(*(side.ids for side in sides), name="the labels in allowed")
    order = np.argsort(code_G, kind="stable")
    edges = np.arange(1 + max(int(code.max(initial=0)) for code in (code_Q, code_G)) + 1)
    offsets = np.searchsorted(code_G[order], edges).astype(np.uint64)
    return Allowed(offsets, order.astype(np.uint32), code_Q)


@dataclass(frozen=True, slots=True)
class Part:
    """Queries that search the same items of the gallery."""

    all: Sides
    options: dict[str, Any]  # keywords for the core's functions
    rows_Q: npt.NDArray[np.int64] | None = None  # the queries of this part; None for all
    kept_G: npt.NDArray[np.int64] | None = None  # the items to search; None for all
    own_Q: npt.NDArray[np.int64] | None = None  # the item that each query excludes, or -1

    def run(
        self, function: Callable[..., Any], *arguments: Any, found: Any = None, **options: Any
    ) -> Any:
        """Call a function of the core on these rows, and name the caller's row in an error."""
        queries, gallery = self.all.queries, self.all.gallery
        if self.rows_Q is not None:
            queries, gallery = queries[self.rows_Q], self.all.items
        if self.kept_G is not None:
            gallery = self.all.items[self.kept_G]
        first = () if found is None else (found,)
        try:
            return function(*first, queries, gallery, *arguments, **options, **self.options)
        except ValueError as error:
            message = re.sub(r"^(queries|gallery) row (\d+)", self._name_row, str(error))
            raise ValueError(message) from None

    def _name_row(self, found: re.Match[str]) -> str:
        rows = self.rows_Q if found[1] == "queries" else self.kept_G
        return found[0] if rows is None else f"{found[1]} row {rows[int(found[2])]}"

    def restore(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Convert indices of kept items to the caller's indices; -1 stays."""
        return indices if self.kept_G is None else np.append(self.kept_G, -1)[indices]

    def translate(self, found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Convert the caller's indices to indices of kept items, or -1; excluded items move to the
        end.
        """
        found = found if self.rows_Q is None else found[self.rows_Q]
        if self.kept_G is None:
            return found
        if self.own_Q is not None:
            order = np.argsort((found == self.own_Q[:, None]) & (found >= 0), axis=1, kind="stable")
            found = np.take_along_axis(found, order, axis=1)
        return _find(found, self.kept_G)


def _find(ids: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places of ids among sorted kept items, or -1."""
    places = np.searchsorted(kept, ids).clip(max=len(kept) - 1)
    return np.where(kept[places] == ids, places, -1)


def divide(
    sides: Sides,
    options: dict[str, Any],
    own_Q: npt.NDArray[np.int64] | None,
    allowed: Allowed,
    *,
    divides: bool,
) -> list[Part]:
    """Divide queries by their list of allowed items, if the lists are shared."""
    used, which_Q = np.unique(allowed.lists, return_inverse=True)
    if len(used) != 1 and not (divides and len(used) * _QUERIES_PER_LIST <= len(which_Q)):
        return [Part(sides, options | {"allowed": allowed})]
    groups = np.split(np.argsort(which_Q, kind="stable"), np.cumsum(np.bincount(which_Q))[:-1])
    parts = []
    for number, rows_Q in zip(used.tolist(), groups):
        items = allowed.items[int(allowed.offsets[number]) : int(allowed.offsets[number + 1])]
        own, kept_G, chosen = None if own_Q is None else own_Q[rows_Q], None, dict(options)
        if 0 < len(items) <= _COPIED * len(sides.items):
            kept_G = items.astype(np.int64)
        else:
            ends = np.array([0, len(items)], np.uint64)
            chosen["allowed"] = Allowed(ends, items, np.zeros(len(rows_Q), np.uint32))
        if own is not None:
            chosen |= {
                "exclude_self": False,
                "exclude": own if kept_G is None else _find(own, kept_G),
            }
        if len(used) > 1:
            chosen["progress"] = None
        parts.append(Part(sides, chosen, rows_Q if len(used) > 1 else None, kept_G, own))
    return parts


def run_parts(
    parts: list[Part], search: Callable[[Part], tuple[Any, ...]], progress: Progress | None
) -> tuple[Any, ...]:
    """Search all parts, and join the arrays, which have an entry per query."""
    if len(parts) == 1:
        return search(parts[0])
    joined: list[npt.NDArray[Any]] = []
    n, done = len(parts[0].all.queries), 0
    for part in parts:
        found = search(part)
        joined = joined or [np.empty((n, *of.shape[1:]), of.dtype) for of in found]
        for whole, of in zip(joined, found):
            whole[part.rows_Q] = of
        done += len(found[0])
        if progress is not None:
            progress(done, n)
    return tuple(joined)


def check_ids(found: npt.NDArray[np.int64], items: int) -> None:
    """Check all indices of `found`, with the core's errors: the core only gets the indices of
    allowed items.
    """
    outside = (found < -1) | (found >= items)
    if outside.any():
        query, column = np.argwhere(outside)[0]
        expected = f"expected indices of the gallery, 0 to {items - 1}, or -1 for none"
        raise ValueError(f"found row {query} contains {found[query, column]}; {expected}")
    ids = np.sort(found, axis=1)
    twice = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)
    if twice.any():
        query, column = np.argwhere(twice)[0]
        raise ValueError(
            f"found row {query} contains {ids[query, column]} twice; expected each index once"
        )
