"""Slow, obvious evaluator, the oracle of the tests: float64, one query at a time, a full sort.

Written from docs/reference/metrics.md; it shares no code with the package.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np


def stated_sum(terms: Sequence[float]) -> float:
    """Sum in eight lanes, each in order, combined in the tree that docs/reference/metrics.md states."""
    lanes = [0.0] * 8
    for i, term in enumerate(terms):
        lanes[i % 8] += float(term)
    s = lanes
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def scaled(x: np.ndarray) -> np.ndarray:
    """Scale a float64 row by the power of two that brings its largest element between 1 and 2."""
    if x.dtype != np.float64:
        return x
    _, exponent = np.frexp(np.abs(x).max())
    return np.ldexp(x, 1 - exponent)


def key(q: np.ndarray, g: np.ndarray, similarity: str) -> float:
    """Return the number by which a query orders the gallery."""
    if similarity == "cosine":
        q, g = scaled(q), scaled(g)
    q, g = q.astype(np.float64), g.astype(np.float64)
    if similarity == "euclidean":
        return -stated_sum((q - g) * (q - g))
    dot = stated_sum(q * g)
    return dot if similarity == "dot" else dot * abs(dot) / stated_sum(g * g)


def hamming_key(q: np.ndarray, g: np.ndarray) -> float:
    return -float(np.unpackbits(q ^ g).sum())


def keys_of(query: np.ndarray, gallery: np.ndarray, similarity: str) -> list[float]:
    if similarity == "hamming":
        return [hamming_key(query, g) for g in gallery]
    return [key(query, g, similarity) for g in gallery]


def metrics_of_order(matches: Sequence[bool], recall_at: Sequence[int]) -> dict[str, Fraction]:
    """Apply the definitions to one complete order of the gallery."""
    r = sum(matches)
    ranks = [i for i, match in enumerate(matches, 1) if match]
    out = {f"recall@{k}": Fraction(int(ranks[0] <= k)) for k in recall_at}
    out["precision_at_1"] = Fraction(int(ranks[0] == 1))
    out["r_precision"] = Fraction(sum(rank <= r for rank in ranks), r)
    out["map_at_r"] = (
        sum((Fraction(i, rank) for i, rank in enumerate(ranks, 1) if rank <= r), Fraction(0)) / r
    )
    out["reciprocal_rank"] = Fraction(1, ranks[0])
    return out


def query_metrics(
    keys: Sequence[float], matches: Sequence[bool], recall_at: Sequence[int], ties: str
) -> dict[str, float]:
    """Measure one query. `keys` and `matches` follow the gallery's order, without the query itself."""
    if not any(matches):
        names = [f"recall@{k}" for k in recall_at] + [
            "precision_at_1",
            "r_precision",
            "map_at_r",
            "reciprocal_rank",
        ]
        return dict.fromkeys(names, math.nan)
    if ties == "expected":
        return expected_metrics(keys, matches, recall_at)
    prefer: dict[str, Callable[[int], int]] = {
        "index": lambda i: 0,
        "optimistic": lambda i: 0 if matches[i] else 1,
        "pessimistic": lambda i: 1 if matches[i] else 0,
    }
    order = sorted(range(len(keys)), key=lambda i: (-keys[i], prefer[ties](i), i))
    return {n: float(v) for n, v in metrics_of_order([matches[i] for i in order], recall_at).items()}


def expected_metrics(
    keys: Sequence[float], matches: Sequence[bool], recall_at: Sequence[int]
) -> dict[str, float]:
    """Average over all arrangements of matches within every group of tied items, each equally likely."""
    order = sorted(range(len(keys)), key=lambda i: -keys[i])
    groups = [[matches[i] for i in g] for _, g in itertools.groupby(order, key=lambda i: keys[i])]
    arrangements = [
        [
            tuple(i in chosen for i in range(len(g)))
            for chosen in itertools.combinations(range(len(g)), sum(g))
        ]
        for g in groups
    ]
    total: dict[str, Fraction] = {}
    n = 0
    for choice in itertools.product(*arrangements):
        n += 1
        for name, value in metrics_of_order([m for group in choice for m in group], recall_at).items():
            total[name] = total.get(name, Fraction(0)) + value
    return {name: float(value / n) for name, value in total.items()}


def evaluate(
    embeddings: np.ndarray,
    labels: Sequence[object],
    gallery: np.ndarray | None = None,
    gallery_labels: Sequence[object] | None = None,
    *,
    similarity: str,
    recall_at: Sequence[int],
    ties: str,
) -> dict[str, np.ndarray]:
    """Measure every query."""
    own = gallery is None
    gallery = embeddings if gallery is None else gallery
    gallery_labels = labels if gallery_labels is None else gallery_labels
    rows = []
    for q, query in enumerate(embeddings):
        others = [g for g in range(len(gallery)) if not (own and g == q)]
        keys = keys_of(query, gallery[others], similarity)
        rows.append(query_metrics(keys, [gallery_labels[g] == labels[q] for g in others], recall_at, ties))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def nearest(
    queries: np.ndarray, gallery: np.ndarray, k: int, similarity: str, exclude_self: bool
) -> tuple[list[list[float]], list[list[int]]]:
    """Return keys and indices of the k nearest, ties by index."""
    all_keys, all_indices = [], []
    for q, query in enumerate(queries):
        keys = keys_of(query, gallery, similarity)
        order = sorted(
            (i for i in range(len(gallery)) if not (exclude_self and i == q)), key=lambda i: (-keys[i], i)
        )
        all_indices.append(order[:k])
        all_keys.append([keys[i] for i in order[:k]])
    return all_keys, all_indices
