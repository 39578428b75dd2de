"""Slow, obvious scores of pairs, written from docs/reference/verification.md; this does not use the
package's code.
"""

from __future__ import annotations

import math

import numpy as np

from eval_support.retrieval_reference import keys_of, scaled, stated_sum


def score(q: np.ndarray, g: np.ndarray, similarity: str) -> float:
    """Return the number to be compared with a threshold; for codes, minus the distance."""
    if similarity == "hamming":
        return keys_of(q, g[None], similarity)[0]
    if similarity == "cosine":
        q, g = scaled(q), scaled(g)
    q, g = q.astype(np.float64), g.astype(np.float64)
    if similarity == "euclidean":
        return 0.0 - stated_sum((q - g) * (q - g))
    dot = stated_sum(q * g)
    if similarity == "dot":
        return dot + 0.0
    square = dot * dot / (stated_sum(q * q) * stated_sum(g * g))
    return math.copysign(math.sqrt(square), dot) + 0.0
