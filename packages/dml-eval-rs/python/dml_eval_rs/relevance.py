"""Relevance by several labels an item.

Shapes: `Q` queries, `G` gallery, `C` labels, `M` pairs that share a label.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.conversion import to_array


def relevance_from_labels(
    labels: npt.NDArray[Any] | Sequence[Iterable[Any]],
    gallery_labels: npt.NDArray[Any] | Sequence[Iterable[Any]] | None = None,
    *,
    graded: bool = False,
) -> tuple[npt.NDArray[np.int64], ...]:
    """List the items that share a label with each query, for ``evaluate(..., relevant=...)``.

    Item g is relevant to query q if their sets of labels meet; its grade is the number of labels in both.

    Args:
        labels: the labels of each query: (Q, C) booleans, or 0 and 1, a column for each label; or Q sets (or other
            collections) of hashable labels.
        gallery_labels: the same of each gallery item; None if the queries are their own gallery. Then each query
            lists itself, too, which `evaluate` leaves out.
        graded: whether to return grades.

    Returns:
        Offsets (Q + 1,) and indices (M,), both int64, and with `graded` the grades (M,) int64. Beside them, memory
        holds the labels of all items once more, and one query's matches.

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
    lists = (offsets, np.concatenate(found).astype(np.int64))
    return (*lists, np.concatenate(counts).astype(np.int64)) if graded else lists


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
