"""Slow, obvious references for clustering metrics and k-means. Written from the equations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import numpy as np


def mutual_information(a: Sequence[int], b: Sequence[int]) -> float:
    n, size_a, size_b = len(a), Counter(a), Counter(b)
    return sum(c / n * math.log(c * n / (size_a[i] * size_b[j])) for (i, j), c in Counter(zip(a, b)).items())


def entropy(a: Sequence[int]) -> float:
    return -sum(c / len(a) * math.log(c / len(a)) for c in Counter(a).values())


def nmi(a: Sequence[int], b: Sequence[int]) -> float:
    if len(set(a)) == len(set(b)) == 1:
        return 1.0
    return 2 * mutual_information(a, b) / (entropy(a) + entropy(b))


def ami(a: Sequence[int], b: Sequence[int]) -> float:
    """Adjust by the mean over every permutation."""
    if len(set(a)) == len(set(b)) and len(set(a)) in (1, len(a)):
        return 1.0
    infos = [mutual_information(a, p) for p in permutations(b)]
    expected = sum(infos) / len(infos)
    return (mutual_information(a, b) - expected) / ((entropy(a) + entropy(b)) / 2 - expected)


def nearest_centroid(x: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return each row's nearest centroid by direct differences in float64; of equally near ones, the lowest index."""
    x, centroids = x.astype(np.float64), centroids.astype(np.float64)
    return np.array([((row - centroids) ** 2).sum(axis=1).argmin() for row in x])
