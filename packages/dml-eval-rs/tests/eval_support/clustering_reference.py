"""Slow, obvious references for clustering metrics and k-means, written from the equations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, permutations

import numpy as np


def mutual_information(a: Sequence[int], b: Sequence[int]) -> float:
    n, size_a, size_b = len(a), Counter(a), Counter(b)
    return sum(
        c / n * math.log(c * n / (size_a[i] * size_b[j]))
        for (i, j), c in Counter(zip(a, b)).items()
    )


def entropy(a: Sequence[int]) -> float:
    return -sum(c / len(a) * math.log(c / len(a)) for c in Counter(a).values())


AVERAGES = {
    "min": min,
    "geometric": lambda x, y: math.sqrt(x * y),
    "arithmetic": lambda x, y: (x + y) / 2,
    "max": max,
}


def nmi(a: Sequence[int], b: Sequence[int], average: str = "arithmetic") -> float:
    if len(set(a)) == 1 or len(set(b)) == 1:
        return float(len(set(a)) == len(set(b)))
    return mutual_information(a, b) / AVERAGES[average](entropy(a), entropy(b))


def ari(a: Sequence[int], b: Sequence[int]) -> float:
    """Compute ARI by comparing all pairs of items."""
    pairs = [(a[i] == a[j], b[i] == b[j]) for i, j in combinations(range(len(a)), 2)]
    both, in_a, in_b = (
        (sum(pair) for pair in zip(*((x and y, x, y) for x, y in pairs))) if pairs else (0, 0, 0)
    )
    expected = Fraction(in_a * in_b, max(len(pairs), 1))
    if Fraction(in_a + in_b, 2) == expected:
        return 1.0
    return float((both - expected) / (Fraction(in_a + in_b, 2) - expected))


def ami(a: Sequence[int], b: Sequence[int]) -> float:
    """Compute AMI, adjusted by the mean over all permutations of `b`."""
    if len(set(a)) == len(set(b)) and len(set(a)) in (1, len(a)):
        return 1.0
    infos = [mutual_information(a, p) for p in permutations(b)]
    expected = sum(infos) / len(infos)
    return (mutual_information(a, b) - expected) / ((entropy(a) + entropy(b)) / 2 - expected)


def nearest_centroid(x: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the rows' nearest centroids, using float64 differences; if equally near, the lowest
    index is used.
    """
    x, centroids = x.astype(np.float64), centroids.astype(np.float64)
    return np.array([((row - centroids) ** 2).sum(axis=1).argmin() for row in x])
