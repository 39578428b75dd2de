"""Rows to be drawn by hypothesis: codes, or small integers in any dtype, so that items tie."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


@st.composite
def small_rows(draw: st.DrawFn, dim: int, most: int = 9, similarity: str = "cosine") -> np.ndarray:
    """Draw 2 to `most` rows of small integers, never all zeros; for "hamming", codes of `dim` bytes with a few bits."""
    if similarity == "hamming":
        code = st.lists(st.sampled_from([0, 1, 3, 129, 255]), min_size=dim, max_size=dim)
        return np.array(draw(st.lists(code, min_size=2, max_size=most)), np.uint8)
    row = st.lists(st.integers(-2, 2), min_size=dim, max_size=dim).filter(any)
    values = draw(st.lists(row, min_size=2, max_size=most))
    return np.array(values, draw(st.sampled_from([np.float16, np.float32, np.float64])))
