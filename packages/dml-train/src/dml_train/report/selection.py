"""Which of many to show, where all would be too many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def select_evenly(count: int, most: int) -> npt.NDArray[np.int64]:
    """Select at most `most` of the indices 0 … count - 1, ascending: evenly spaced, from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
