"""Labels of one side's items, and what else says who matches whom: groups, junk, distractors, ignored items.

Shapes: `N` items of a side, `Q` queries, `M` listed pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs.inputs import arguments
from dml_eval_rs.matches.relevance import ListedItems, Lists, check_ignored


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Labels:
    """Labels of the queries or of the gallery. A gallery item matches a query if both have the same label.

    Pass this instead of a plain array of labels if items also have groups, or if some of them must be excluded. The
    arrays are checked once.

    Args:
        ids: (N,) integers of any width, booleans or strings, also a table's column of text.
        groups: (N,) integers, booleans or strings, such as the camera of each image. A query's ranking excludes the
            gallery items of the query's label *and* group: the rule of re-identification. Both sides have groups, or
            neither.
        junk: a label, or several. Items with these labels are excluded from every ranking, and measured as no query.
            With a gallery, junk belongs to the gallery's labels.
        distractors: a label, or several. Items with these labels match nothing, but stay in the rankings.
        ignored: ``(offsets, indices)``, integers of shapes (Q + 1,) and (M,): the ranking of query q excludes the
            gallery items ``indices[offsets[q]:offsets[q + 1]]``. Belongs to the queries' labels.

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
        set_field = object.__setattr__
        set_field(self, "ids", ids_N)
        set_field(self, "groups", groups_N)
        set_field(self, "junk", _listed(junk, "junk", ids_N))
        set_field(self, "distractors", _listed(distractors, "distractors", ids_N))
        set_field(self, "ignored", check_ignored(ignored))

    def __len__(self) -> int:
        return len(self.ids)

    def warn_of_minus_one(self) -> None:
        """Warn if -1 is a label like any other: data sets often mark junk with it."""
        ids = self.ids
        if ids.dtype.kind != "i" or len(ids) == 0 or ids.min() != -1:
            return
        if not any(-1 in listed for listed in (self.junk, self.distractors)):
            arguments.warn(
                "-1 is the only negative label and counts as a class; if it marks junk, pass Labels(ids, junk=-1) "
                "(dml-eval: --junk -1), or distractors=-1 to keep these items in the rankings"
            )


def to_labels(x: object, name: str) -> Labels:
    """Return labels, checked: `Labels` as they are, or those of an array."""
    return x if isinstance(x, Labels) else Labels(arguments.partition(x, name))


def _listed(x: npt.ArrayLike, name: str, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one or several labels as an array, of the labels' dtype if there is none."""
    if isinstance(x, (str, bytes)):
        return arguments.partition([x], name)
    if np.size(x) == 0:
        return ids[:0]
    return arguments.partition(x if np.ndim(x) else np.atleast_1d(np.asarray(x)), name)
