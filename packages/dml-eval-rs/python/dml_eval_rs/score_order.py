"""Scores as integers in the same order, whose comparisons ignore the caller's floating-point environment.

Where the caller flushes subnormal numbers to zero, numpy takes all of them for equal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ALL_BUT_THE_SIGN = np.int64(2**63 - 1)


def to_order(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return an integer for each score: larger for larger ones; 1 more is the next float64 number."""
    return _flip_negative(scores.view(np.int64))


def scores_of(order: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the scores of some integers."""
    return _flip_negative(order).view(np.float64)


def from_order(order: int) -> float:
    """Return the score of an integer."""
    return float(scores_of(np.array([order], np.int64))[0])


def next_above(score: float) -> float:
    """Return the least float64 number above a score."""
    return from_order(int(to_order(np.array([score]))[0]) + 1)


def _flip_negative(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    flipped: npt.NDArray[np.int64] = bits ^ ((bits >> 63) & _ALL_BUT_THE_SIGN)
    return flipped
