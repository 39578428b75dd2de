"""Exact hard negatives: for each item the nearest items of other classes.

Shapes: `N` items, `D` dim, `W` bytes per code, `K` negatives.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.inputs.arguments import Similarity
from dml_eval_rs.search.knn import check_k
from dml_eval_rs.search.range import check_finite

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
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Find each item's k nearest items of other classes, exactly, in the order of `knn`.

    With `below`, negative n of item a counts only if s(a, n) < r(a) − margin; r(a) is the similarity of a's hardest
    positive, min over p of s(a, p), or of its easiest, the max. So with ``"hardest"`` all positives are nearer than
    the negatives found: these are semi-hard (Schroff et al. 2015, FaceNet, Eq. 4) for every positive of a. A margin
    spares items that are near since their label is wrong (Moreira et al. 2024, NV-Retriever, TopK-MarginPos).

    s is compared as `verify` compares scores (docs/reference/verification.md), in float64; of codes, s is minus the
    distance.

    Args:
        embeddings: (N, D) floats or (N, W) codes, as in `knn`.
        labels: (N,) integers of any width, booleans or strings, of at least two values.
        k: 1 to N − 1.
        below: ``"hardest"``, ``"easiest"``, or None for all negatives. An item without a positive has no bound.
        margin: at least 0, in the units of the similarities or distances; 0 without `below`.
        similarity, threads: as in `knn`.

    Returns:
        Similarities (N, K) float32, descending, or distances (N, K) int32, ascending; and indices (N, K) int64. After
        the last negative of an item that has fewer than k: NaN, or a distance of -1, and index -1.

    Raises:
        TypeError: as `knn`, or if the margin isn't a number.
        ValueError: as `knn`, or if `below` or the margin is out of range, or all labels are equal.
        KeyboardInterrupt: within a second of Ctrl-C.

    Example:
        >>> import numpy as np
        >>> from dml_eval_rs import hard_negatives
        >>> x = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 0.9], [0.8, 0.6]], dtype=np.float32)
        >>> similarities, indices = hard_negatives(x, [0, 0, 1, 1, 1], k=1)
        >>> indices.ravel().tolist()
        [4, 4, 1, 1, 1]
    """
    arguments.one_of(similarity, "similarity", arguments.SIMILARITIES)
    x_ND = arguments.check_rows(embeddings, "embeddings", similarity, "items")
    (code_N,) = arguments.encode(arguments.labels(labels, "labels", x_ND, "embeddings"))
    n = len(x_ND)
    if code_N.max() == 0:
        raise ValueError(f"all {n} labels are equal; expected at least two classes")
    checked_margin = check_finite(margin, "margin")
    if checked_margin < 0:
        raise ValueError(f"margin is {checked_margin}; expected at least 0")
    if checked_margin and below is None:
        raise ValueError(
            f"margin is {checked_margin} and below is None; expected below='hardest' or 'easiest', or no margin"
        )
    if below is not None:
        arguments.one_of(below, "below", ("hardest", "easiest"))
    return _native.hard_negatives(
        x_ND,
        code_N,
        check_k(k, n, True),
        below=below,
        margin=checked_margin,
        similarity=similarity,
        threads=arguments.threads(threads),
    )
