"""Agreement of the rows' order with the published one, for figures that can't be compared themselves."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dml_train.measure.intervals import pooled


class Standing(NamedTuple):
    """A row: its groups, its published figure, and the measured values, one a seed."""

    groups: frozenset[str]
    published: float
    measured: Sequence[float]


class Order(NamedTuple):
    """Pairs of rows whose published figures differ."""

    pairs: int
    same: int  # pairs whose measured means have the published order
    # Pairs whose difference's 95 % interval lies on the published side of 0, and on the other; None with one seed.
    surely_same: int | None
    surely_opposite: int | None


def compare_order(rows: Sequence[Standing]) -> Order:
    """Compare the measured order of rows with the published one.

    Two rows are compared if they share a group, or neither has one. A difference's interval is Student's, with the
    spread of runs pooled over all rows. Of pairs without a true difference, 2.5 % are expected beyond it on the wrong
    side.

    Args:
        rows: the rows, all with equally many measured values; a row whose published figure is NaN doesn't count.
    """
    pairs = same = surely_same = surely_opposite = 0
    spread = pooled([row.measured for row in rows])
    for first, second in itertools.combinations(rows, 2):
        unrelated = (first.groups or second.groups) and not first.groups & second.groups
        published = first.published - second.published
        if unrelated or math.isnan(published) or published == 0:
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
