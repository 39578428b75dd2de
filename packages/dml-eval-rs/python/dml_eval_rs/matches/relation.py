"""The relation of queries to gallery items, as the core takes it.

Shapes: `Q` queries, `G` gallery, `M` listed pairs of a query and an item.
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
    """Checked arrays of a relation: of labels, or of listed pairs.

    Attributes:
        labels, gallery_labels: (Q,) and (G,) dense codes; no gallery labels if the queries search one another.
        groups, gallery_groups: (Q,) and (G,) dense codes.
        exclude: (Q,) each query's item, which its ranking excludes, or -1.
        offsets, items, grades: (Q + 1,), (M,) and (M,): the matches listed for each query, ascending.
        ignored_offsets, ignored_items: the items listed for each query that its ranking excludes.
        kept: the rows of the gallery (without one, of the queries) that aren't junk; None for all. Codes of this side
            are those of the kept rows.
    """

    labels: _Codes | None = None
    gallery_labels: _Codes | None = None
    groups: _Codes | None = None
    gallery_groups: _Codes | None = None
    exclude: npt.NDArray[np.int64] | None = None
    offsets: npt.NDArray[np.uint64] | None = None
    items: _Codes | None = None
    grades: npt.NDArray[np.float64] | None = None
    ignored_offsets: npt.NDArray[np.uint64] | None = None
    ignored_items: _Codes | None = None
    kept: npt.NDArray[np.uintp] | None = None

    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """Return all arrays, by which processes that share an evaluation compare their relations."""
        return tuple(getattr(self, field.name) for field in fields(self))


def relate(
    labels: object,
    gallery_labels: object,
    sides: Sides,
    names: tuple[str, str] = ("embeddings", "gallery"),
    *,
    exclude: npt.ArrayLike | None = None,
    unmatched: str = "skip",
) -> Relation:
    """Check what says who matches whom, and encode it for the core.

    Args:
        labels: an array, `Labels`, or `Relevance`.
        gallery_labels: an array or `Labels`; None without a gallery, and beside `Relevance`.
        sides: the rows; only their shapes are read.
        names: the names of the rows' arguments, for errors.
        exclude: (Q,) the item that each query's ranking excludes, or -1.
        unmatched: if ``"skip"``, groups that exclude every match are an error.

    Raises:
        TypeError: if an array has the wrong dtype, or there are no labels.
        ValueError: if shapes don't match, lists name absent items, or values exclude each other.
    """
    n_queries, n_items = len(sides.queries), len(sides.items)
    if exclude is not None and sides.gallery is None:
        raise ValueError(
            "exclude came without a gallery, and without one each query excludes itself; expected a gallery, or no "
            "exclude"
        )
    own_Q = None if exclude is None else check_exclude(exclude, n_queries, n_items)
    if isinstance(labels, Relevance):
        if gallery_labels is not None:
            raise ValueError(
                "gallery_labels came with a Relevance, which lists the matches; expected one of them"
            )
        labels.listed.check_bounds("Relevance", n_queries, n_items)
        return Relation(
            exclude=own_Q,
            offsets=labels.offsets,
            items=labels.indices,
            grades=labels.grades,
            **_ignored(labels, n_queries, n_items),
        )
    if labels is None:
        raise TypeError(
            "labels is None; expected an array of labels, Labels(ids, ...) or Relevance(offsets, indices)"
        )
    if (sides.gallery is None) != (gallery_labels is None):
        given, missing = (
            (names[1], "gallery_labels") if gallery_labels is None else ("gallery_labels", names[1])
        )
        raise ValueError(
            f"{given} came without {missing}; expected both, or neither to let the queries search one another"
        )
    of_sides = [to_labels(labels, "labels")]
    arguments.check_length(of_sides[0].ids, "labels", sides.queries, names[0])
    if sides.gallery is not None:
        of_sides.append(to_labels(gallery_labels, "gallery_labels"))
        arguments.check_length(of_sides[1].ids, "gallery_labels", sides.gallery, names[1])
        _check_division(*of_sides)
    for side in of_sides:
        side.warn_of_minus_one()
    codes, is_junk = _encode_classes(of_sides)
    groups: list[_Codes] = []
    if of_sides[0].groups is not None:
        groups = arguments.encode(
            *(side.groups for side in of_sides if side.groups is not None), name="groups"
        )
    ignored = _ignored(of_sides[0], n_queries, n_items)
    kept = None
    if is_junk is not None:
        if ignored:
            raise ValueError("ignored came with junk; expected one of them: list the junk in ignored")
        kept = np.flatnonzero(~is_junk).astype(np.uintp)
        if len(kept) == 0:
            raise ValueError("all items are junk; expected some items with other labels")
        codes[-1] = codes[-1][kept]
        groups[-1:] = [code[kept] for code in groups[-1:]]
        if own_Q is not None:
            place_G = np.full(n_items, -1, np.int64)
            place_G[kept] = np.arange(len(kept))
            own_Q = np.where(own_Q < 0, own_Q, place_G[own_Q])
    if groups and unmatched == "skip":
        _check_matches_of_other_groups(codes, groups)
    return Relation(
        labels=codes[0],
        gallery_labels=codes[1] if len(codes) > 1 else None,
        groups=groups[0] if groups else None,
        gallery_groups=groups[1] if len(groups) > 1 else None,
        exclude=own_Q,
        **ignored,
        kept=kept,
    )


def _check_division(queries: Labels, gallery: Labels) -> None:
    """Check which side of a gallery search has groups, junk and ignored items."""
    if (queries.groups is None) != (gallery.groups is None):
        given, missing = (
            ("labels", "gallery_labels") if gallery.groups is None else ("gallery_labels", "labels")
        )
        raise ValueError(
            f"{given} have groups, but {missing} have none; expected groups on both sides, or on neither"
        )
    if len(queries.junk):
        raise ValueError(
            "labels have junk beside a gallery; drop these queries, and name the gallery's junk in gallery_labels: "
            "Labels(ids, junk=...)"
        )
    if gallery.ignored is not None:
        raise ValueError(
            "gallery_labels have ignored items; expected them in labels, with a list for each query"
        )


def _ignored(matches: Labels | Relevance, queries: int, items: int) -> dict[str, Any]:
    if matches.ignored is None:
        return {}
    matches.ignored.check_bounds("ignored", queries, items)
    return {"ignored_offsets": matches.ignored.offsets, "ignored_items": matches.ignored.items}


def _encode_classes(sides: list[Labels]) -> tuple[list[_Codes], npt.NDArray[np.bool_] | None]:
    """Encode labels densely, each distractor as a class of its own; return which items of the last side are junk."""
    special = [sides[-1].junk, *(side.distractors for side in sides)]
    codes = arguments.encode(*(side.ids for side in sides), *(listed for listed in special if len(listed)))
    codes, listed = codes[: len(sides)], codes[len(sides) :]
    is_junk = np.isin(codes[-1], listed.pop(0)) if len(special[0]) else np.zeros(0, np.bool_)
    first = 1 + max(int(code.max(initial=0)) for code in (*codes, *listed))
    for i, code in enumerate(codes if listed else ()):
        alone = np.isin(code, np.concatenate(listed))
        codes[i] = np.where(alone, first + np.cumsum(alone) - 1, code).astype(np.uint32)
        first += int(np.count_nonzero(alone))
    return codes, is_junk if is_junk.any() else None


def _check_matches_of_other_groups(codes: list[_Codes], group_codes: list[_Codes]) -> None:
    """Raise if some queries share their label with other items, but none with an item of another group."""
    label_Q, group_Q, label_G, group_G = codes[0], group_codes[0], codes[-1], group_codes[-1]
    classes = 1 + max(int(label_Q.max(initial=0)), int(label_G.max(initial=0)))
    lowest_C, highest_C = np.full(classes, 2**32 - 1, np.uint32), np.zeros(classes, np.uint32)
    np.minimum.at(lowest_C, label_G, group_G)
    np.maximum.at(highest_C, label_G, group_G)
    itself = int(len(codes) == 1)  # without a gallery
    same_label = np.bincount(label_G, minlength=classes)[label_Q] > itself
    other_group = (lowest_C[label_Q] != group_Q) | (highest_C[label_Q] != group_Q)
    if same_label.any() and not (same_label & other_group).any():
        raise ValueError(
            "groups exclude every match: all items of a query's label have the query's group, too; expected groups "
            "that differ within a label, such as the camera of each item"
        )


def check_exclude(x: npt.ArrayLike, queries: int, items: int) -> npt.NDArray[np.int64]:
    """Return each query's index in a gallery of so many items, and -1 for queries outside it."""
    array = to_array(x, "exclude")
    if array.dtype.kind not in "iu":
        raise TypeError(f"exclude has dtype {array.dtype}; expected integers")
    if array.shape != (queries,):
        raise ValueError(f"exclude has shape {array.shape}; expected ({queries},), one per query")
    outside = (array < -1) | (array >= items) if array.dtype.kind == "i" else array >= items
    if outside.any():
        place = int(np.argmax(outside))
        last = "2**62 - 1" if items == 2**62 else items - 1
        raise ValueError(f"exclude has {array[place]} at {place}; expected -1, or an index from 0 to {last}")
    return np.ascontiguousarray(array, np.int64)
