"""Exact hard negatives: for each item the nearest items of other classes.

Shapes: `N` items, `D` dim, `K` negatives, `M` pairs of items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dml_eval_rs import _native, arguments
from dml_eval_rs.retrieval import SIMILARITIES, Similarity
from dml_eval_rs.search import check_k

Below = Literal["hardest", "easiest"]
# A block of items, and the similarities and indices of some others for each, -1 where one isn't wanted.
_Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int64]]

_ENTRIES = 1 << 23  # neighbours, pairs or scores in memory at a time
_WIDEST = 1024  # neighbours of an item before all scores are cheaper


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
    bound_N = None
    if below is not None:
        arguments.one_of(below, "below", ("hardest", "easiest"))
        bound_N = _positive_scores(x_ND, code_N, below, similarity, checked_threads) - checked_margin
    similarity_NK = np.full((n, checked_k), np.nan, np.float32)
    index_NK = np.full((n, checked_k), -1, np.int64)
    for block, similarities, found in _widening(
        x_ND, code_N, bound_N, checked_k, similarity=similarity, threads=checked_threads
    ):
        place = np.cumsum(found >= 0, axis=1) - 1
        row, column = np.nonzero((found >= 0) & (place < checked_k))
        where = block[row], place[row, column]
        similarity_NK[where], index_NK[where] = similarities[row, column], found[row, column]
    return similarity_NK, index_NK


def _widening(
    x_ND: npt.NDArray[Any],
    code_N: npt.NDArray[np.uint32],
    bound_N: npt.NDArray[np.float64] | None,
    k: int,
    *,
    similarity: Similarity,
    threads: int | None,
) -> Iterator[_Found]:
    """Yield the first negatives of blocks of items, with -1 for others; the last of an item's are complete.

    Most items have at most the median class's positives among their neighbours. The others search again, for twice as
    many; and if a bound excludes even a thousand neighbours, by all scores.
    """
    n = len(x_ND)
    pending = np.arange(n)
    width = min(n, k + int(np.median(np.bincount(code_N)[code_N])))  # an item finds itself, too
    while len(pending) and (bound_N is None or width <= max(_WIDEST, k)):
        incomplete = []
        for block in _blocks(pending, width):
            whole = len(block) == n
            similarities, found = _native.knn(
                x_ND if whole else x_ND[block],
                None if whole else x_ND,
                width,
                similarity=similarity,
                exclude_self=False,
                threads=threads,
            )
            wanted = code_N[found] != code_N[block][:, None]
            if bound_N is not None:
                pairs = np.stack([np.repeat(block, width), found.reshape(-1)], axis=1).astype(np.uint32)
                scores = _native.pair_scores(x_ND, None, pairs, similarity=similarity, threads=threads)
                wanted &= scores.reshape(found.shape) < bound_N[block][:, None]
            yield block, similarities, np.where(wanted, found, -1)
            incomplete.append(block[np.count_nonzero(wanted, axis=1) < k])
        pending = np.concatenate(incomplete) if width < n else pending[:0]
        width = min(n, 2 * width)
    if len(pending) and bound_N is not None:
        yield from _by_all_scores(x_ND, code_N, bound_N, k, pending, similarity=similarity, threads=threads)


def _by_all_scores(
    x_ND: npt.NDArray[Any],
    code_N: npt.NDArray[np.uint32],
    bound_N: npt.NDArray[np.float64],
    k: int,
    pending: npt.NDArray[np.int64],
    *,
    similarity: Similarity,
    threads: int | None,
) -> Iterator[_Found]:
    """Yield the first k negatives of each pending item, however far down its ranking they are.

    Matrix products in float64 select candidates: no score is off by more than an error e, so an item with a score below
    the bound less e qualifies, and none of the first k has a score 2e below the k-th of these. The candidates' own
    scores and order are exact.
    """
    wide_ND = x_ND.astype(np.float64)
    if similarity == "cosine":
        wide_ND /= np.abs(wide_ND).max(axis=1, keepdims=True)
        wide_ND /= np.sqrt((wide_ND * wide_ND).sum(axis=1, keepdims=True))
    square_N = (wide_ND * wide_ND).sum(axis=1)
    size_N = square_N if similarity == "euclidean" else np.sqrt(square_N)
    largest = size_N.max()
    size_N = size_N + largest if similarity == "euclidean" else size_N * largest
    error_N = 2.0**-48 * (wide_ND.shape[1] + 16) * size_N + 1e-300  # the last for products that underflow
    for block in _blocks(pending, len(x_ND)):
        scores = wide_ND[block] @ wide_ND.T
        if similarity == "euclidean":
            scores = 2 * scores - square_N[block][:, None] - square_N
        error, bound = error_N[block][:, None], bound_N[block][:, None]
        possible = (code_N[block][:, None] != code_N) & (scores < bound + error)
        certain = np.where(possible & (scores < bound - error), scores, -np.inf)
        kth = np.partition(certain, -k, axis=1)[:, -k:][:, :1]
        row, item = np.nonzero(possible & (scores >= kth - 2 * error))
        pairs = np.stack([block[row], item], axis=1).astype(np.uint32)
        exact = _native.pair_scores(x_ND, None, pairs, similarity=similarity, threads=threads)
        kept = exact < bound_N[block][row]
        row, item = row[kept], item[kept]
        similarities = np.full((len(block), k), np.nan, np.float32)
        found = np.full((len(block), k), -1, np.int64)
        starts = np.searchsorted(row, np.arange(len(block) + 1))
        for place in np.flatnonzero(np.diff(starts)):
            items = item[starts[place] : starts[place + 1]]
            nearest, order = _native.knn(
                x_ND[block[place : place + 1]],
                x_ND[items],
                min(k, len(items)),
                similarity=similarity,
                exclude_self=False,
                threads=1,
            )
            similarities[place, : len(order[0])], found[place, : len(order[0])] = nearest[0], items[order[0]]
        yield block, similarities, found


def _blocks(items: npt.NDArray[np.int64], width: int) -> list[npt.NDArray[np.int64]]:
    step = max(1, _ENTRIES // width)
    return [items[begin : begin + step] for begin in range(0, len(items), step)]


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


def _positive_scores(
    x_ND: npt.NDArray[Any],
    code_N: npt.NDArray[np.uint32],
    below: Below,
    similarity: str,
    threads: int | None,
) -> npt.NDArray[np.float64]:
    """Return the lowest or highest score of each item's positives; infinity for an item without one."""
    hardest = below == "hardest"
    reduce = np.minimum if hardest else np.maximum
    score_N = np.full(len(code_N), np.inf if hardest else -np.inf)
    for pairs in _positive_pairs(code_N):
        scores = _native.pair_scores(x_ND, None, pairs, similarity=similarity, threads=threads)
        for side in (0, 1):
            reduce.at(score_N, pairs[:, side], scores)
    score_N[np.bincount(code_N)[code_N] == 1] = np.inf
    return score_N


def _positive_pairs(code_N: npt.NDArray[np.uint32]) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield each unordered pair of one class once, (M, 2), about `_ENTRIES` at a time."""
    order_N = np.argsort(code_N, kind="stable")
    end_N = np.cumsum(np.bincount(code_N))[code_N[order_N]]
    later_N = end_N - np.arange(len(order_N)) - 1  # items of the class after this one
    total_N = np.cumsum(later_N)
    begin = 0
    while begin < len(order_N):
        before = int(total_N[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(total_N, before + _ENTRIES, "right")))
        later = later_N[begin:end]
        first = np.repeat(np.arange(begin, end), later)
        step = np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
        yield np.stack([order_N[first], order_N[first + 1 + step]], axis=1).astype(np.uint32)
        begin = end
