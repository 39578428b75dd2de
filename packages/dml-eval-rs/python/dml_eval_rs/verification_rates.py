"""Rates of verification from counts of pairs, correctly rounded."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native
from dml_eval_rs.verification_result import Roc

Counts = npt.NDArray[np.uint64]
# The distinct scores of the positives, ascending, their numbers, and the negatives below the first, equal to it,
# between it and the second, and so on. A score may have no positive.
Slots = tuple[npt.NDArray[np.float64], Counts, Counts]


def divide(numerator: int, denominator: int) -> float:
    """Return the quotient of two integers, correctly rounded to even in any rounding mode of the caller."""
    # Python divides long integers in integer arithmetic, and short ones as floats, by the caller's mode.
    return (numerator << 64) / (denominator << 64)


def accepted_at_most(far: float, n_negative: int) -> int:
    """Return the largest number of negatives whose share of all, in float64, is at most `far`."""
    numerator, denominator = far.as_integer_ratio()
    number = numerator * n_negative // denominator
    return number + (divide(number + 1, n_negative) <= far)


def check_numbers(n_positive: int, n_negative: int) -> None:
    """Check that there are pairs of both kinds."""
    if n_positive == 0:
        raise ValueError(
            f"none of the {n_negative} pairs has equal labels; expected at least one positive pair"
        )
    if n_negative == 0:
        raise ValueError(
            f"all {n_positive} pairs have equal labels; expected at least one negative (impostor) pair"
        )


def equal_error_rate(counts: tuple[int, int, int, int], n_negative: int, n_positive: int) -> float:
    """Return where the line between two corners of the curve meets TAR = 1 − FAR, correctly rounded.

    `counts` are the negatives accepted at both corners, and the positives. The first corner is below that line, the
    second on it or above.
    """
    negatives_above, negatives_at_least, positives_above, positives_at_least = counts
    far, next_far = Fraction(negatives_above, n_negative), Fraction(negatives_at_least, n_negative)
    tar, next_tar = Fraction(positives_above, n_positive), Fraction(positives_at_least, n_positive)
    share = (1 - far - tar) / (next_far + next_tar - far - tar)
    rate = far + share * (next_far - far)
    return divide(rate.numerator, rate.denominator)


def curve_of(slots: Slots, n_negative: int, n_positive: int) -> tuple[float, Roc]:
    """Return the ROC curve, after (2·#{positive > negative} + #{equal}) / (2·P·N), correctly rounded."""
    far, tar, threshold, twice_right = _native.roc_curve(*slots)
    return divide(twice_right, 2 * n_positive * n_negative), Roc(far=far, tar=tar, threshold=threshold)
