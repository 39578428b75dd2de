"""Which of many to show, where all would be too many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def evenly(count: int, most: int) -> npt.NDArray[np.int64]:
    """At most `most` of the places 0 … count - 1, ascending: from the first to the last, evenly apart."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
