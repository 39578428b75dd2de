"""Data for the evaluator's benchmarks: unit vectors in classes of 2 to 16 items, hard or easy to
retrieve.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Noise relative to the spread of the class centres; the names describe Recall@1 at 60,502 × 512.
NOISE = {"hard": 3.15, "easy": 2.3}
SEED = 0


def stanford_like(
    kind: str, n: int, dim: int = 512
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw (n, dim) unit vectors and labels: 11,316 classes for 60,502 items, else in
    proportion.
    """
    rng = np.random.default_rng(SEED)
    classes = max(1, round(n * 11_316 / 60_502))
    sizes = np.clip(rng.poisson(3.35, classes) + 2, 2, 16)
    while (gap := n - int(sizes.sum())) != 0:
        at = rng.integers(classes, size=abs(gap))
        np.add.at(sizes, at, np.sign(gap))
        sizes = np.clip(sizes, 2, 16)
    return _embed(rng, sizes, dim, NOISE[kind])


def birds_like(
    n: int = 5_924, classes: int = 100, dim: int = 512
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw unit vectors in a few large classes."""
    rng = np.random.default_rng(SEED)
    sizes = np.full(classes, n // classes)
    sizes[: n - int(sizes.sum())] += 1
    return _embed(rng, sizes, dim, 4.0)


def _embed(
    rng: np.random.Generator, sizes: npt.NDArray[np.int64], dim: int, noise: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rng.shuffle(labels)
    centres = rng.standard_normal((len(sizes), dim), dtype=np.float32)
    x = centres[labels] + np.float32(noise) * rng.standard_normal(
        (len(labels), dim), dtype=np.float32
    )
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, labels


def decaying(
    n: int, dim: int, exponent: float, noise: float = 0.4
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw unit vectors in classes of five; the variance along principal axis i is proportional to
    i**-exponent.
    """
    rng = np.random.default_rng(SEED)
    deviation = (1 + np.arange(dim, dtype=np.float32)) ** np.float32(-exponent / 2)
    labels = np.arange(n) // 5
    rng.shuffle(labels)
    centres = rng.standard_normal((labels.max() + 1, dim), dtype=np.float32)
    x = centres[labels] + np.float32(noise) * rng.standard_normal((n, dim), dtype=np.float32)
    axes = np.linalg.qr(rng.standard_normal((dim, dim)))[0].astype(np.float32)
    x = (x * deviation) @ axes
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, labels


def codes_of(x: npt.NDArray[np.float32], bits: int) -> npt.NDArray[np.uint8]:
    """Return the (n, bits / 8) packed signs of random projections."""
    directions = np.random.default_rng(SEED).standard_normal((x.shape[1], bits), dtype=np.float32)
    return np.concatenate(
        [np.packbits(x[i : i + 4096] @ directions > 0, axis=1) for i in range(0, len(x), 4096)]
    )
