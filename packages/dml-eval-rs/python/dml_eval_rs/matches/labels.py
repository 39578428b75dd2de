"""Labels of one side's items, and what else says who matches whom: groups, junk, distractors, ignored items.

Shapes: `N` items of a side, `Q` queries, `M` listed pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.matches.relevance import ListedItems, Lists, check_ignored


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Labels:
    """Labels of the queries or of the gallery. A gallery item matches a query if both have the same label.

    Use this instead of an array of labels if items have groups or some must be excluded. Arrays are checked only once.

    Args:
        ids: (N,) integers of any width, booleans or strings, also a table's column of text.
        groups: (N,) integers, booleans or strings, such as the camera of each image, on both sides or neither. The
            ranking of a query excludes gallery items with the query's label *and* group, as in re-identification.
        junk: a label, or several. Items with these labels are excluded from every ranking and from the queries. With a
            gallery, pass junk to the gallery's labels.
        distractors: a label, or several. Items with these labels match nothing, but stay in the rankings.
        ignored: ``(offsets, indices)``, integers of shapes (Q + 1,) and (M,): the ranking of query q excludes the
            gallery items ``indices[offsets[q]:offsets[q + 1]]``. Pass it to the queries' labels.

    Raises:
        TypeError: if an array has the wrong dtype, such as floats, which merge large ids.
        ValueError: if an array has the wrong shape, or a list is malformed.
    """

    ids: npt.NDArray[Any]
    groups: npt.NDArray[Any] | None
    junk: npt.NDArray[Any]
    distractors: npt.NDArray[Any]
    ignored: ListedItems | None

    def __init__(
        self,
        ids: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        *,
        junk: npt.ArrayLike = (),
        distractors: npt.ArrayLike = (),
        ignored: Lists | None = None,
    ) -> None:
        ids_N = arguments.partition(ids, "ids")
        groups_N = None if groups is None else arguments.partition(groups, "groups", len(ids_N), "label")
        special = _listed(junk, "junk", ids_N), _listed(distractors, "distractors", ids_N)
        checked = ids_N, groups_N, *special, check_ignored(ignored)
        for field, value in zip(fields(self), checked, strict=True):
            object.__setattr__(self, field.name, value)

    def __len__(self) -> int:
        return len(self.ids)

    def warn_of_minus_one(self) -> None:
        """Warn if -1 counts as a class, since data sets often mark junk with -1."""
        ids = self.ids
        if ids.dtype.kind != "i" or len(ids) == 0 or ids.min() != -1:
            return
        if not any(-1 in listed for listed in (self.junk, self.distractors)):
            arguments.warn(
                "-1 is the only negative label and counts as a class; if it marks junk, pass Labels(ids, junk=-1) "
                "(dml-eval: --junk -1), or distractors=-1 to keep these items in the rankings"
            )


def to_labels(x: object, name: str) -> Labels:
    """Return `Labels` as they are, or check an array and return its `Labels`."""
    return x if isinstance(x, Labels) else Labels(arguments.partition(x, name))


def _listed(x: npt.ArrayLike, name: str, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one or several labels as an array, or an empty array of the dtype of `ids`."""
    if isinstance(x, (str, bytes)):
        return arguments.partition([x], name)
    if np.size(x) == 0:
        return ids[:0]
    return arguments.partition(x if np.ndim(x) else np.atleast_1d(np.asarray(x)), name)
