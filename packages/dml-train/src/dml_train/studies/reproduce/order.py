"""Whether rows stand in the published order: all that can be asked where the figures themselves can't be compared."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dml_train.measure.intervals import pooled


@dataclass(frozen=True, slots=True)
class Standing:
    """A row: what it shares with others, its published figure, and what was measured, a value a seed."""

    groups: frozenset[str]
    published: float
    measured: Sequence[float]


@dataclass(frozen=True, slots=True)
class Order:
    """Pairs of rows whose published figures differ.

    Args:
        pairs: how many there are.
        same: in how many the measured means stand in the published order.
        surely_same, surely_opposite: in how many the 95 % interval of the difference lies on that side of 0, on the
            other one; None with one seed.
    """

    pairs: int
    same: int
    surely_same: int | None
    surely_opposite: int | None


def order(rows: Sequence[Standing]) -> Order:
    """How the measured order of rows agrees with the published one.

    Rows are compared that share a group, or neither has one. A difference's interval is Student's, with the spread of
    runs pooled over all rows. Of pairs that don't differ in truth, 2.5 % are expected beyond it on a wrong side.

    Args:
        rows: those with a finite published figure count, all with equally many measured values.
    """
    pairs = same = surely_same = surely_opposite = 0
    spread = pooled([row.measured for row in rows])
    for first, second in itertools.combinations(rows, 2):
        apart = (first.groups or second.groups) and not first.groups & second.groups
        published = first.published - second.published
        if apart or math.isnan(published) or published == 0:
            continue
        pairs += 1
        difference = statistics.fmean(first.measured) - statistics.fmean(second.measured)
        same += difference * published > 0
        if spread is not None and abs(difference) > spread.half_width_of_difference(len(first.measured)):
            surely_same += difference * published > 0
            surely_opposite += difference * published < 0
    if spread is None:
        return Order(pairs, same, None, None)
    return Order(pairs, same, surely_same, surely_opposite)
