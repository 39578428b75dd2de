"""Digests by which a streaming evaluator sees that queries or labels differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

BUCKET = 65_536  # items of a sum of labels


def bytes_of(part: npt.NDArray[Any]) -> bytes:
    """Return bytes that differ if the entries of two arrays of one dtype do."""
    # The buffer of a StringDType holds pointers.
    return repr(part.tolist()).encode() if part.dtype.kind == "T" else part.tobytes()


def label_sums(labels: npt.NDArray[Any], start: int) -> dict[int, int]:
    """Sum hashes of (label, index) modulo 2**64 over each bucket of the gallery; the order of blocks doesn't matter."""
    sums, stop = {}, start + len(labels)
    for bucket in range(start // BUCKET, -(-stop // BUCKET)):
        low, high = max(start, bucket * BUCKET), min(stop, (bucket + 1) * BUCKET)
        part = labels[low - start : high - start]
        # True equals 1, but prints otherwise.
        distinct, inverse = np.unique(
            part.astype(np.int64) if part.dtype.kind == "b" else part, return_inverse=True
        )
        hashes = [
            hashlib.blake2b(repr(label).encode(), digest_size=8).digest() for label in distinct.tolist()
        ]
        hash_G = np.frombuffer(b"".join(hashes), "<u8")[inverse.reshape(-1)]
        index_G = np.arange(low, high, dtype=np.uint64)
        sums[bucket] = int((hash_G * (np.uint64(2) * index_G + np.uint64(1))).sum(dtype=np.uint64))
    return sums


def add_sums(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
    """Add the sums of two parts of a gallery, modulo 2**64."""
    return {bucket: (a.get(bucket, 0) + b.get(bucket, 0)) % 2**64 for bucket in {**a, **b}}
