"""Arrays that tell the core which gallery items match each query.

Shapes: `Q` queries, `G` gallery, `M` listed (query, item) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Sides
from dml_eval_rs.inputs.conversion import to_array
from dml_eval_rs.matches.labels import Labels, to_labels
from dml_eval_rs.matches.relevance import Relevance

_Codes = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Checked arrays of a relation, given by labels or by listed pairs."""

    # (Q,) and (G,) dense codes, excluding junk; the gallery's codes are None if a gallery is not
    # given.
    labels: _Codes | None = None
    gallery_labels: _Codes | None = None
    groups: _Codes | None = None
    gallery_groups: _Codes | None = None
    exclude: npt.NDArray[np.int64] | None = None  # (Q,) an item to exclude per query, or -1
    # Query q matches ``items[offsets[q]:offsets[q + 1]]``, in ascending order. `ignored_items` are
    # excluded likewise.
    offsets: npt.NDArray[np.uint64] | None = None
    items: _Codes | None = None
    grades: npt.NDArray[np.float64] | None = (
        None  # (M,) the grades of the matches; None if all count equally
    )
    ignored_offsets: npt.NDArray[np.uint64] | None = None
    ignored_items: _Codes | None = None
    kept: npt.NDArray[np.uintp] | None = None  # the searched rows, excluding junk; None for all

    @property
    def codes(self) -> tuple[_Codes, _Codes]:
        """The labels of both sides; the same array if a gallery is not given."""
        assert self.labels is not None
        return self.labels, self.labels if self.gallery_labels is None else self.gallery_labels

    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """Return all arrays, to be compared between processes."""
        return tuple(getattr(self, field.name) for field in fields(self))


def relate(
    labels: object,
    gallery_labels: object,
    sides: Sides,
    names: tuple[str, str] = ("embeddings", "gallery"),
    *,
    exclude: npt.ArrayLike | None = None,
) -> Relation:
    """Check the labels and `exclude` of `evaluate`, and return encoded arrays for the core.

    Only the shapes of `sides` are used. Errors use `names` for the sides.
    """
    n_queries, n_items = len(sides.queries), len(sides.items)
    if exclude is not None and sides.gallery is None:
        raise ValueError(
            "exclude is given without a gallery, so each query excludes itself; omit exclude"
        )
    own_Q = None if exclude is None else check_exclude(exclude, n_queries, n_items)
    ignored: dict[str, Any] = {}
    if isinstance(labels, Labels | Relevance) and labels.ignored is not None:
        labels.ignored.check_bounds("ignored", n_queries, n_items)
        ignored = {"ignored_offsets": labels.ignored.offsets, "ignored_items": labels.ignored.items}
    if isinstance(labels, Relevance):
        if gallery_labels is not None:
            raise ValueError("gallery_labels and a Relevance are both given; expected only one")
        labels.check_bounds("Relevance", n_queries, n_items)
        lists: Any = {"offsets": labels.offsets, "items": labels.items, "grades": labels.grades}
        return Relation(exclude=own_Q, **lists, **ignored)
    if labels is None:
        raise TypeError(
            "labels is None; expected labels, Labels(ids, ...) or Relevance(offsets, indices)"
        )
    if (sides.gallery is None) != (gallery_labels is None):
        both = names[1], "gallery_labels"
        given, missing = both if gallery_labels is None else both[::-1]
        raise ValueError(
            f"{given} is given without {missing}; expected both, or none to search the queries"
        )
    checked = [to_labels(labels, "labels")]
    arguments.check_length(checked[0].ids, "labels", sides.queries, names[0])
    if sides.gallery is not None:
        checked.append(to_labels(gallery_labels, "gallery_labels"))
        arguments.check_length(checked[1].ids, "gallery_labels", sides.gallery, names[1])
        _check_both(*checked)
    for side in checked:
        side.warn_of_minus_one()
    codes, is_junk = _encode_classes(checked)
    given_groups = [side.groups for side in checked if side.groups is not None]
    groups = arguments.encode(*given_groups, name="groups") if given_groups else []
    kept = None
    if is_junk is not None:
        if ignored:
            raise ValueError(
                "ignored and junk are both given; expected only one: list the junk in ignored"
            )
        kept = np.flatnonzero(~is_junk).astype(np.uintp)
        if len(kept) == 0:
            raise ValueError("all items are junk; expected some items with other labels")
        codes[-1] = codes[-1][kept]
        groups[-1:] = [code[kept] for code in groups[-1:]]
        if own_Q is not None:
            place_G = np.full(n_items, -1, np.int64)
            place_G[kept] = np.arange(len(kept))
            own_Q = np.where(own_Q < 0, own_Q, place_G[own_Q])
    found: Any = dict(zip(("labels", "gallery_labels"), codes))
    found |= zip(("groups", "gallery_groups"), groups)
    return Relation(exclude=own_Q, kept=kept, **found, **ignored)


def _check_both(queries: Labels, gallery: Labels) -> None:
    """Check that groups, junk and ignored items are given for the right sides."""
    if (queries.groups is None) != (gallery.groups is None):
        both = "labels", "gallery_labels"
        given, missing = both if gallery.groups is None else both[::-1]
        raise ValueError(
            f"{given} have groups, but {missing} have none; expected groups in both or neither"
        )
    if len(queries.junk):
        raise ValueError(
            "labels have junk, but there is a gallery; drop these queries, and pass the gallery's "
            "junk in gallery_labels=Labels(ids, junk=...)"
        )
    if gallery.ignored is not None:
        raise ValueError(
            "gallery_labels have ignored items; pass ignored to the queries' labels instead"
        )


def _encode_classes(sides: list[Labels]) -> tuple[list[_Codes], npt.NDArray[np.bool_] | None]:
    """Encode labels as dense codes, with distractors as separate classes; return which of
    `sides[-1]` are junk.
    """
    special = [sides[-1].junk, *(side.distractors for side in sides)]
    codes = arguments.encode(
        *(side.ids for side in sides), *(listed for listed in special if len(listed))
    )
    codes, listed = codes[: len(sides)], codes[len(sides) :]
    is_junk = np.isin(codes[-1], listed.pop(0)) if len(special[0]) else np.zeros(0, np.bool_)
    first = 1 + max(int(code.max(initial=0)) for code in (*codes, *listed))
    for i, code in enumerate(codes if listed else ()):
        distracts = np.isin(code, np.concatenate(listed))
        codes[i] = np.where(distracts, first + np.cumsum(distracts) - 1, code).astype(np.uint32)
        first += int(np.count_nonzero(distracts))
    return codes, is_junk if is_junk.any() else None


def pair_codes(labels: npt.NDArray[Any], groups: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return a code per (label, group) pair."""
    return labels.astype(np.int64) + (groups.astype(np.int64) << 32)


def count_equal(queries: npt.NDArray[Any], items: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Count the items with the code of each query, (Q,)."""
    codes, counts = np.unique(items, return_counts=True)
    at = np.searchsorted(codes, queries).clip(max=len(codes) - 1)
    return np.where(codes[at] == queries, counts[at], 0)


def check_exclude(x: npt.ArrayLike, queries: int, items: int) -> npt.NDArray[np.int64]:
    """Check the (Q,) gallery indices to exclude, -1 for none."""
    array = to_array(x, "exclude")
    if array.dtype.kind not in "iu":
        raise TypeError(f"exclude has dtype {array.dtype}; expected integers")
    if array.shape != (queries,):
        raise ValueError(f"exclude has shape {array.shape}; expected ({queries},), one per query")
    outside = (array < -1) | (array >= items) if array.dtype.kind == "i" else array >= items
    if outside.any():
        place = int(np.argmax(outside))
        raise ValueError(f"exclude has {array[place]} at index {place}; expected -1 to {items - 1}")
    return np.ascontiguousarray(array, np.int64)
