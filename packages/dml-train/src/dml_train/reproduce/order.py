"""Whether rows stand in the published order: all that can be asked where the figures themselves can't be compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dml_train.intervals import of_runs


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

    Rows are compared that share a group, or neither has one. A difference's interval is Student's over the
    differences of the runs with equal seeds. With m pairs, 2.5 % of them are expected on a wrong side by chance.

    Args:
        rows: those with a finite published figure count, all with equally many measured values.
    """
    pairs = same = surely_same = surely_opposite = 0
    repeated = True
    for first, second in itertools.combinations(rows, 2):
        apart = (first.groups or second.groups) and not first.groups & second.groups
        published = first.published - second.published
        if apart or math.isnan(published) or published == 0:
            continue
        pairs += 1
        mean, half_width = of_runs([a - b for a, b in zip(first.measured, second.measured, strict=True)])
        same += mean * published > 0
        if half_width is None:
            repeated = False
        elif abs(mean) > half_width:
            surely_same += mean * published > 0
            surely_opposite += mean * published < 0
    return Order(pairs, same, surely_same if repeated else None, surely_opposite if repeated else None)
