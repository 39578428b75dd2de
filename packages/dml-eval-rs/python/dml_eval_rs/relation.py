"""The relation of queries to gallery items: which items match, and which a query's ranking leaves out.

Shapes: `Q` queries, `G` gallery, `M` listed pairs of a query and an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments
from dml_eval_rs.conversion import to_array
from dml_eval_rs.lists import check_lists

Lists = tuple[npt.ArrayLike, npt.ArrayLike]
GradedLists = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Checked arrays of a relation, as the core takes them: of labels, or of listed pairs.

    Attributes:
        labels, gallery_labels: (Q,) and (G,) dense codes; no gallery labels if the queries are their own gallery.
        groups, gallery_groups: (Q,) and (G,) dense codes.
        indices: (Q,) each query's own item, or -1.
        offsets, items, grades: (Q + 1,), (M,) and (M,): the matches listed for each query, ascending.
        left_out_offsets, left_out_items: the items listed for each query that its ranking leaves out.
        kept: the rows of the gallery (without one, of the queries) that take part; None for all.
    """

    labels: npt.NDArray[np.uint32] | None = None
    gallery_labels: npt.NDArray[np.uint32] | None = None
    groups: npt.NDArray[np.uint32] | None = None
    gallery_groups: npt.NDArray[np.uint32] | None = None
    indices: npt.NDArray[np.int64] | None = None
    offsets: npt.NDArray[np.uint64] | None = None
    items: npt.NDArray[np.uint32] | None = None
    grades: npt.NDArray[np.float64] | None = None
    left_out_offsets: npt.NDArray[np.uint64] | None = None
    left_out_items: npt.NDArray[np.uint32] | None = None
    kept: npt.NDArray[np.uintp] | None = None

    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """Return all arrays, by which processes that share an evaluation compare their relations."""
        return (
            self.labels,
            self.gallery_labels,
            self.groups,
            self.gallery_groups,
            self.indices,
            self.offsets,
            self.items,
            self.grades,
            self.left_out_offsets,
            self.left_out_items,
            self.kept,
        )


def relate(
    queries: npt.NDArray[Any],
    queries_name: str,
    labels: npt.ArrayLike | None,
    gallery: npt.NDArray[Any] | None,
    gallery_name: str,
    gallery_labels: npt.ArrayLike | None,
    *,
    groups: npt.ArrayLike | None,
    gallery_groups: npt.ArrayLike | None,
    relevant: Lists | GradedLists | None,
    ignored: Lists | None,
    indices: npt.ArrayLike | None,
    junk: npt.ArrayLike,
    distractors: npt.ArrayLike,
    unmatched: str,
) -> Relation:
    """Check the arguments of `evaluate` that say what counts as a match.

    Raises:
        TypeError: if an array has the wrong dtype, or neither labels nor relevant items are given.
        ValueError: if shapes don't match, lists name absent items, arguments exclude each other, or groups leave out
            every match while `unmatched` is "skip".
    """
    n_items = len(queries if gallery is None else gallery)
    if indices is not None and gallery is None:
        raise ValueError(
            "indices came without a gallery, and without one each query leaves itself out; "
            "expected a gallery, or no indices"
        )
    own_Q = None if indices is None else check_indices(indices, len(queries), n_items)
    left_out = None if ignored is None else check_lists(ignored, "ignored", len(queries), n_items)
    if relevant is not None:
        given = {
            "labels": labels, "gallery_labels": gallery_labels, "groups": groups, "gallery_groups": gallery_groups,
            "junk": junk if np.size(junk) else None, "distractors": distractors if np.size(distractors) else None,
        }  # fmt: skip
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} came with relevant, which replaces labels; expected one of them: list the matches, or "
                    "leave relevant out"
                )
        lists = check_lists(relevant, "relevant", len(queries), n_items, graded=True)
        return Relation(
            indices=own_Q,
            offsets=lists.offsets,
            items=lists.items,
            grades=lists.grades,
            left_out_offsets=None if left_out is None else left_out.offsets,
            left_out_items=None if left_out is None else left_out.items,
        )
    if labels is None:
        raise TypeError("labels is None; expected the queries' labels, or relevant=(offsets, indices)")
    labels_Q = arguments.labels(labels, "labels", queries, queries_name)
    sides = [(queries, queries_name, labels_Q, groups, "groups")]
    if gallery is not None:
        labels_G = arguments.labels(gallery_labels, "gallery_labels", gallery, gallery_name)
        sides.append((gallery, gallery_name, labels_G, gallery_groups, "gallery_groups"))
    _both_or_neither(groups, gallery_groups, gallery)
    codes, is_junk = encode_classes([side[2] for side in sides], junk, distractors)
    group_codes: list[npt.NDArray[np.uint32]] = []
    if groups is not None:
        checked = [
            arguments.labels(group, name, rows, rows_name) for rows, rows_name, _, group, name in sides
        ]
        group_codes = arguments.encode(*checked, name="groups")
    kept = None
    if is_junk is not None:
        if left_out is not None:
            raise ValueError("ignored came with junk; expected one of them: list the junk in ignored")
        kept = np.flatnonzero(~is_junk).astype(np.uintp)
        if len(kept) == 0:
            raise ValueError("all items are junk; expected some items with other labels")
        codes[-1] = codes[-1][kept]
        group_codes[-1:] = [code[kept] for code in group_codes[-1:]]
        if own_Q is not None:
            place_G = np.full(n_items, -1, np.int64)
            place_G[kept] = np.arange(len(kept))
            own_Q = np.where(own_Q < 0, own_Q, place_G[own_Q])
    if group_codes and unmatched == "skip":
        _check_matches_of_other_groups(codes, group_codes)
    return Relation(
        labels=codes[0],
        gallery_labels=codes[1] if gallery is not None else None,
        groups=group_codes[0] if group_codes else None,
        gallery_groups=group_codes[1] if len(group_codes) > 1 else None,
        indices=own_Q,
        left_out_offsets=None if left_out is None else left_out.offsets,
        left_out_items=None if left_out is None else left_out.items,
        kept=kept,
    )


def _check_matches_of_other_groups(
    codes: list[npt.NDArray[np.uint32]], group_codes: list[npt.NDArray[np.uint32]]
) -> None:
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
            "groups leave out every match: all items of a query's label have the query's group, too; expected groups "
            "that differ within a label, such as the camera of each item"
        )


def check_indices(x: npt.ArrayLike, queries: int, items: int) -> npt.NDArray[np.int64]:
    """Return each query's index in a gallery of so many items, and -1 for queries outside it."""
    array = to_array(x, "indices")
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices has dtype {array.dtype}; expected integers")
    if array.shape != (queries,):
        raise ValueError(f"indices has shape {array.shape}; expected ({queries},), one a query")
    outside = (array < -1) | (array >= items) if array.dtype.kind == "i" else array >= items
    if outside.any():
        place = int(np.argmax(outside))
        last = "2**62 - 1" if items == 2**62 else items - 1
        raise ValueError(f"indices has {array[place]} at {place}; expected -1, or an index from 0 to {last}")
    return np.ascontiguousarray(array, np.int64)


def _both_or_neither(groups: object, gallery_groups: object, gallery: object) -> None:
    if gallery is None and gallery_groups is not None:
        raise ValueError("gallery_groups came without a gallery; expected groups alone")
    if gallery is not None and (groups is None) != (gallery_groups is None):
        given, missing = ("groups", "gallery_groups") if groups is not None else ("gallery_groups", "groups")
        raise ValueError(f"{given} came without {missing}; expected the groups of both sides, or neither")


def encode_classes(
    parts: list[npt.NDArray[Any]], junk: npt.ArrayLike, distractors: npt.ArrayLike
) -> tuple[list[npt.NDArray[np.uint32]], npt.NDArray[np.bool_] | None]:
    """Encode labels densely, each distractor as a class of its own; return which items of the last part are junk."""
    special = [to_special_labels(junk, "junk"), to_special_labels(distractors, "distractors")]
    *codes, junk_codes, distractor_codes = arguments.encode(
        *parts, *(x if len(x) else parts[0][:0] for x in special)
    )
    is_junk = np.isin(codes[-1], junk_codes)
    for i, code in enumerate(codes):
        alone = np.isin(code, distractor_codes)
        if alone.any():
            first = 1 + max(int(part.max()) for part in (*codes, distractor_codes))
            codes[i] = code.copy()
            codes[i][alone] = np.arange(first, first + alone.sum(), dtype=np.uint32)
    return codes, is_junk if is_junk.any() else None


def to_special_labels(x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Return the labels that `junk` or `distractors` lists, which may be a single one."""
    if np.size(x) == 0:
        return np.zeros(0, np.int64)
    if isinstance(x, (str, bytes)):
        return arguments.partition([x], name)
    return arguments.partition(x if np.ndim(x) else np.atleast_1d(np.asarray(x)), name)
