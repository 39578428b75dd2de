"""The gallery items that a search may return per query.

Shapes: `Q` queries, `G` gallery, `L` lists, `M` listed items.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.labels import Labels
from dml_eval_rs.matches.relevance import ListedItems, Lists, check_lists

AllowedLike = npt.ArrayLike | tuple[Labels, Labels] | Lists | ListedItems


class Allowed(NamedTuple):
    """Lists of items, in ascending order, and the list per query."""

    offsets: npt.NDArray[np.uint64]  # (L + 1,) the start of the items per list, then the end
    items: npt.NDArray[np.uint32]  # (M,)
    lists: npt.NDArray[np.uint32]  # (Q,)


def to_allowed(x: Any, queries: int, items: int) -> Allowed:
    """Check `allowed` of the searches, and list the items.

    Raises:
        TypeError, ValueError: if this is none of the forms that `knn` documents, or does not fit the queries and items.
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
            f"allowed has dtype {mask_G.dtype}; expected booleans, two Labels, or the tuple (offsets, indices)"
        )
    if mask_G.shape != (items,):
        raise ValueError(
            f"allowed has shape {mask_G.shape}; expected ({items},), one boolean per gallery item"
        )
    found = np.flatnonzero(mask_G).astype(np.uint32)
    return Allowed(np.array([0, len(found)], np.uint64), found, np.zeros(queries, np.uint32))


def _pair(x: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(x) != 2:
        raise TypeError(f"allowed is a tuple of {len(x)}; expected two Labels, or (offsets, indices)")
    return x


def _from_labels(x: tuple[Any, ...], queries: int, items: int) -> Allowed:
    """List the items of each label."""
    sides = _pair(x)
    for side, name, length in zip(sides, ("queries", "gallery"), (queries, items)):
        if not isinstance(side, Labels):
            raise TypeError(f"allowed has Labels and a {type(side).__name__}; expected Labels for both sides")
        if side.groups is not None or side.ignored is not None or len(side.junk) or len(side.distractors):
            raise ValueError(
                f"allowed has Labels with groups, junk, distractors or ignored items for the {name}; "
                "expected only ids"
            )
        if len(side) != length:
            raise ValueError(f"allowed has {len(side)} labels for the {name}; expected {length}")
    code_Q, code_G = arguments.encode(*(side.ids for side in sides), name="the labels in allowed")
    order = np.argsort(code_G, kind="stable")
    edges = np.arange(1 + max(int(code.max(initial=0)) for code in (code_Q, code_G)) + 1)
    offsets = np.searchsorted(code_G[order], edges).astype(np.uint64)
    return Allowed(offsets, order.astype(np.uint32), code_Q)
