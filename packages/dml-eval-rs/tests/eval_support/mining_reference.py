"""Slow, obvious hard negatives; this does not use the package's code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eval_support.retrieval_reference import keys_of
from eval_support.scores_reference import score


def hard_negatives(
    x: np.ndarray,
    labels: np.ndarray,
    k: int,
    similarity: str,
    below: str | None,
    margin: float,
    *,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    listed: Sequence[set[int]] | None = None,
    allowed: Sequence[set[int]] | None = None,
    factor: float = 1.0,
) -> list[list[int]]:
    """For each query, sort all items, and keep the first k allowed non-matches below the bound."""
    items, item_labels = (x, labels) if gallery is None else (gallery, gallery_labels)
    rows = []
    for a, query in enumerate(x):
        keys = keys_of(query, items, similarity)
        scores = (
            keys
            if similarity == "hamming"
            else [score(query, other, similarity) for other in items]
        )
        others = [i for i in range(len(items)) if gallery is not None or i != a]
        matches = {i for i in others if (i in listed[a] if listed else item_labels[i] == labels[a])}
        bound = np.inf
        if below is not None and matches:
            bound = (min if below == "hardest" else max)(
                scores[p] for p in matches
            ) * factor - margin
        order = sorted(others, key=lambda i: (-keys[i], i))
        rows.append(
            [
                i
                for i in order
                if i not in matches and scores[i] < bound and (allowed is None or i in allowed[a])
            ][:k]
        )
    return rows
