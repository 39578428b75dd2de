"""Rates of verification from counts of pairs, correctly rounded."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dml_eval_rs.verification_result import Roc


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


def area(
    scores: npt.NDArray[np.float64],
    positives: npt.NDArray[np.uint64],
    negatives: npt.NDArray[np.uint64],
    n_negative: int,
    n_positive: int,
) -> float:
    """Return (2·#{positive > negative} + #{equal}) / (2·#positives·#negatives), correctly rounded.

    `scores` are the positives' distinct scores, ascending; `negatives` those below the first, equal to it, between it
    and the second, and so on.
    """
    cumulative = np.cumsum(negatives)
    twice_right = (
        cumulative[:-1:2] + cumulative[1::2]
    )  # twice those below a score, and once those equal to it
    # Products may exceed 64 bits: whole numbers of Python, in parts of 32 bits.
    low, high = twice_right & np.uint64(0xFFFFFFFF), twice_right >> np.uint64(32)
    total = 0
    for start in range(0, len(scores), 1 << 20):
        part = slice(start, start + (1 << 20))
        of_low = (positives[part] * low[part]).tolist()
        of_high = (positives[part] * high[part]).tolist()
        total += sum(of_low) + (sum(of_high) << 32)
    return divide(total, 2 * n_positive * n_negative)


def roc_of_slots(
    scores: npt.NDArray[np.float64],
    positives: npt.NDArray[np.uint64],
    negatives: npt.NDArray[np.uint64],
    n_negative: int,
    n_positive: int,
) -> Roc:
    """Return the corners of the curve: before and at each distinct score of the positives, descending."""
    from_top = np.cumsum(negatives[::-1])[:-1]  # above the largest score, at least it, above the second, ...
    accepted = np.concatenate([[0], np.repeat(np.cumsum(positives[::-1]), 2)])[:-1]
    thresholds = np.repeat(scores[::-1], 2)
    thresholds[::2] = np.nextafter(thresholds[::2], np.inf)
    far = np.concatenate([[0.0], from_top / n_negative, [1.0]])
    tar = np.concatenate([[0.0], accepted / n_positive, [1.0]])
    threshold = np.concatenate([[np.inf], thresholds, [-np.inf]])
    moved = np.concatenate([[True], (np.diff(far) > 0) | (np.diff(tar) > 0)])
    return Roc(far=far[moved], tar=tar[moved], threshold=threshold[moved])
