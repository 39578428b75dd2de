"""Exact hard negatives: for each item the nearest items of other classes.

Shapes: `N` items, `D` dim, `K` negatives.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.retrieval import SIMILARITIES, Similarity
from dml_eval_rs.search import check_k

Below = Literal["hardest", "easiest"]


def hard_negatives(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    k: int,
    *,
    below: Below | None = None,
    margin: float = 0.0,
    similarity: Similarity = "cosine",
    threads: int | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Find each item's k nearest items of other classes, exactly, in the order of `knn`.

    With `below`, negative n of item a counts only if s(a, n) < r(a) − margin; r(a) is the similarity of a's hardest
    positive, min over p of s(a, p), or of its easiest, the max. So with ``"hardest"`` all positives are nearer than
    the negatives found: these are semi-hard (Schroff et al. 2015, FaceNet, Eq. 4) for every positive of a. A margin
    spares items that are near since their label is wrong (Moreira et al. 2024, NV-Retriever, TopK-MarginPos).

    s is compared as `verify` compares scores (docs/reference/verification.md), in float64.

    Args:
        embeddings: (N, D) float16, float32 or float64, finite.
        labels: (N,) integers of any width, booleans or strings, of at least two values.
        k: 1 to N − 1.
        below: ``"hardest"``, ``"easiest"``, or None for all negatives. An item without a positive has no bound.
        margin: at least 0, in the units of the similarities; 0 without `below`.
        similarity: ``"cosine"``, ``"dot"``, or ``"euclidean"`` (−|a − n|²).
        threads: number of threads; None for `RAYON_NUM_THREADS`, by default all available cores.

    Returns:
        Similarities (N, K) float32, descending, and indices (N, K) int64; NaN and -1 after the last negative of an item
        that has fewer than k.

    Raises:
        TypeError: if an array has the wrong kind of dtype, or the margin is no number.
        ValueError: if shapes don't match, a number isn't finite, a row is all zeros under the cosine, an argument is
            out of range, or all labels are equal.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import hard_negatives
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> similarities, indices = hard_negatives(x, [0, 0, 1, 1, 1], k=1)
        >>> indices.ravel().tolist()
        [4, 4, 1, 1, 1]
    """
    arguments.one_of(similarity, "similarity", SIMILARITIES)
    x_ND = arguments.embeddings(embeddings, "embeddings", "items")
    (code_N,) = arguments.encode(arguments.labels(labels, "labels", x_ND, "embeddings"))
    n = len(x_ND)
    if code_N.max() == 0:
        raise ValueError(f"all {n} labels are equal; expected at least two classes")
    checked_k, checked_threads = check_k(k, n, True), arguments.threads(threads)
    checked_margin = _check_margin(margin, below)
    if below is not None:
        arguments.one_of(below, "below", ("hardest", "easiest"))
    return _native.hard_negatives(
        x_ND,
        code_N,
        checked_k,
        below=below,
        margin=checked_margin,
        similarity=similarity,
        threads=checked_threads,
    )


def _check_margin(margin: float, below: Below | None) -> float:
    try:
        checked = float(margin)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"margin is {margin!r}; expected a number that a float holds") from error
    if not 0 <= checked < math.inf:
        raise ValueError(f"margin is {checked}; expected a finite number of at least 0")
    if checked and below is None:
        raise ValueError(
            f"margin is {checked} and below is None; expected below='hardest' or 'easiest', or no margin"
        )
    return checked
