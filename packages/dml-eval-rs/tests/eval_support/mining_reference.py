"""Slow, obvious hard negatives; this does not use the package's code."""

from __future__ import annotations

import numpy as np

from eval_support.retrieval_reference import keys_of
from eval_support.scores_reference import score


def hard_negatives(
    x: np.ndarray, labels: np.ndarray, k: int, similarity: str, below: str | None, margin: float
) -> list[list[int]]:
    """For each item, sort all items, and keep the first k with different labels below the bound."""
    rows = []
    for a, query in enumerate(x):
        keys = keys_of(query, x, similarity)
        scores = keys if similarity == "hamming" else [score(query, other, similarity) for other in x]
        positives = [scores[p] for p in range(len(x)) if p != a and labels[p] == labels[a]]
        bound = np.inf
        if below is not None and positives:
            bound = (min if below == "hardest" else max)(positives) - margin
        order = sorted(range(len(x)), key=lambda i: (-keys[i], i))
        rows.append([i for i in order if labels[i] != labels[a] and scores[i] < bound][:k])
    return rows
