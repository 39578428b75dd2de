"""Slow, dense re-ranking and query expansion, written from docs/reference/metrics.md; item by item,
with sets.
"""

from __future__ import annotations

import numpy as np

from eval_support.retrieval_reference import keys_of


def rerank(
    queries: np.ndarray,
    gallery: np.ndarray | None,
    k1: int,
    k2: int,
    weight: float,
    similarity: str,
) -> np.ndarray:
    """Return all distances, (Q, G)."""
    items = queries if gallery is None else np.concatenate([queries, gallery])
    n = len(items)
    order = []
    for i in range(n):
        keys = keys_of(items[i], items, similarity)
        order.append([i, *sorted(set(range(n)) - {i}, key=lambda j: (-keys[j], j))])
    rows = items.astype(np.float64)
    if similarity == "cosine":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scaled = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    scaled /= np.maximum(scaled.max(axis=1, keepdims=True), 1e-300)

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in order[i][: k + 1] if i in order[j][: k + 1]}

    vectors = np.zeros((n, n))
    for i in range(n):
        own = reciprocal(i, k1)
        expanded = set(own)
        for j in own:
            others = reciprocal(j, round(k1 / 2))
            if 3 * len(others & own) > 2 * len(others):
                expanded |= others
        members = sorted(expanded)
        vectors[i, members] = np.exp(-scaled[i, members])
        vectors[i] /= vectors[i].sum()
    vectors = np.array([vectors[order[i][:k2]].mean(axis=0) for i in range(n)])
    jaccard = np.array(
        [[1 - np.minimum(a, b).sum() / np.maximum(a, b).sum() for b in vectors] for a in vectors]
    )
    first = 0 if gallery is None else len(queries)
    distances: np.ndarray = ((1 - weight) * jaccard + weight * scaled)[: len(queries), first:]
    return distances


def expand_queries(
    queries: np.ndarray, gallery: np.ndarray | None, k: int, alpha: float
) -> np.ndarray:
    """Return the expanded queries, (Q, D)."""
    queries = queries.astype(np.float64)
    items = queries if gallery is None else gallery.astype(np.float64)
    expanded = []
    for i, query in enumerate(queries):
        keys = keys_of(query, items, "cosine")
        found = sorted(range(len(items)), key=lambda j: (-keys[j], j))
        found = [j for j in found if gallery is not None or j != i][:k]
        unit = query / np.linalg.norm(query)
        total = unit.copy()
        for j in found:
            item = items[j] / np.linalg.norm(items[j])
            total += max(float(unit @ item), 0.0) ** alpha * item
        length = np.linalg.norm(total)
        expanded.append(unit if length < 1e-9 else total / length)
    return np.array(expanded)
