"""Means over resampled classes of queries, and over classes whose differences change sign together.

Shapes: `Q` queries, `C` classes, `R` repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dml_eval_rs import arguments

_NUMBERS_AT_A_TIME = 4_000_000


def class_totals(
    values: npt.NDArray[np.float64], by: npt.ArrayLike, measured: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sum of the measured values of each class, and their number, both (C,).

    Args:
        values: (Q,) values.
        by: (Q,) labels of the classes.
        measured: (Q,) whether a query counts.

    Raises:
        TypeError: if `by` has the wrong kind of dtype.
        ValueError: if `by` doesn't have one label a query, or the measured queries are all of one class.
    """
    labels_Q = arguments.partition(by, "by")
    if len(labels_Q) != len(values):
        raise ValueError(f"by has shape {labels_Q.shape}; expected ({len(values)},), one label per query")
    _, class_q = np.unique(labels_Q[measured], return_inverse=True)
    count_C = np.bincount(class_q.reshape(-1))
    if len(count_C) < 2:
        raise ValueError(
            f"by has {len(count_C)} class among the queries with a match; expected at least 2 to resample"
        )
    sum_C = np.bincount(class_q.reshape(-1), weights=values[measured]).astype(np.float64)
    return sum_C, count_C.astype(np.int64)


def resampled_means(
    sum_C: npt.NDArray[np.float64], count_C: npt.NDArray[np.int64], repetitions: int, seed: int
) -> npt.NDArray[np.float64]:
    """Return (R,) means over the queries of C classes drawn with replacement."""
    rng = np.random.default_rng(seed)
    drawn = (
        rng.integers(0, len(sum_C), size=(rows, len(sum_C))) for rows in _batches(repetitions, len(sum_C))
    )
    return np.concatenate([sum_C[class_RC].sum(axis=1) / count_C[class_RC].sum(axis=1) for class_RC in drawn])


def count_extreme(
    terms: npt.NDArray[np.float64], n_queries: int, observed: float, repetitions: int, seed: int
) -> int:
    """Count the repetitions in which the mean of randomly signed terms is at least as far from 0 as the observed one.

    Args:
        terms: differences of queries, or sums of differences of classes.
        n_queries: the number that the sum of the terms is divided by.
        observed: the mean of the unchanged terms.
        repetitions: R.
        seed: seed of the signs.
    """
    # Sums of the same numbers in another order differ by rounding, and must still count as equal.
    threshold = abs(observed) * (1 - 1e-12)
    rng = np.random.default_rng(seed)
    changed = terms[terms != 0]
    extreme = 0
    for rows in _batches(repetitions, len(changed)):
        signs = rng.integers(0, 2, size=(rows, len(changed)), dtype=np.int8) * 2 - 1
        extreme += int(np.count_nonzero(np.abs((signs @ changed) / n_queries) >= threshold))
    return extreme


def _batches(repetitions: int, numbers: int) -> Iterator[int]:
    batch = max(1, _NUMBERS_AT_A_TIME // max(1, numbers))
    return (min(batch, repetitions - start) for start in range(0, repetitions, batch))
