"""Labels for queries or for the gallery, with groups, junk, distractors and ignored items.

Shapes: `N` items, `Q` queries, `M` listed pairs.
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
    """Labels for the queries or for the gallery. A gallery item matches a query if the labels are
    equal.

    Use this instead of an array if items have groups or should be excluded. Arrays are checked only
    once.

    Args:
        ids: (N,) integers of any width, booleans or strings. A table's text column can also be
            used.
        groups: (N,) integers, booleans or strings, for example the camera per image. If used, both
            queries and gallery must have groups. Gallery items with the query's label *and* group
            are excluded, like in re-identification.
        junk: a label or a list of labels. Items with these labels are excluded from rankings and
            from the queries. If there is a gallery, pass junk to the gallery's labels.
        distractors: a label or a list of labels. Items with these labels will not match, but stay
            in rankings.
        ignored: ``(offsets, indices)``, integers of shapes (Q + 1,) and (M,). Exclude the gallery
            items ``indices[offsets[q]:offsets[q + 1]]`` from query q's ranking. Pass this to the
            queries' labels.

    Raises:
        TypeError: if an array is of the wrong dtype, such as floats, which merge large ids.
        ValueError: if the shape of an array is wrong, or a list is malformed.
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
        groups_N = (
            None if groups is None else arguments.partition(groups, "groups", len(ids_N), "label")
        )
        special = _listed(junk, "junk", ids_N), _listed(distractors, "distractors", ids_N)
        checked = ids_N, groups_N, *special, check_ignored(ignored)
        for field, value in zip(fields(self), checked, strict=True):
            object.__setattr__(self, field.name, value)

    def __len__(self) -> int:
        return len(self.ids)

    def warn_of_minus_one(self) -> None:
        """Warn if -1 is used as a label, because data sets often use -1 to mark junk."""
        ids = self.ids
        if ids.dtype.kind != "i" or len(ids) == 0 or ids.min() != -1:
            return
        if not any(-1 in listed for listed in (self.junk, self.distractors)):
            arguments.warn(
                "-1 is the only negative label and counts as a class; if it marks junk, use "
                "Labels(ids, junk=-1) (dml-eval: --junk -1), or distractors=-1 to keep these items "
                "in the rankings"
            )


def to_labels(x: object, name: str) -> Labels:
    """Return `Labels` unchanged, or check an array and convert it to `Labels`."""
    return x if isinstance(x, Labels) else Labels(arguments.partition(x, name))


def _listed(x: npt.ArrayLike, name: str, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a label or a list of labels as an array. If empty, use the dtype of `ids`."""
    if isinstance(x, (str, bytes)):
        return arguments.partition([x], name)
    if np.size(x) == 0:
        return ids[:0]
    return arguments.partition(x if np.ndim(x) else np.atleast_1d(np.asarray(x)), name)
