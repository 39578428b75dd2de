"""Rows that hypothesis draws: small integers, which tie exactly, in any dtype and layout; also
codes.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


@st.composite
def small_rows(draw: st.DrawFn, dim: int, most: int = 9, similarity: str = "cosine") -> np.ndarray:
    """Draw 2 to `most` rows of small integers, never all zeros; for "hamming", codes of `dim` bytes
    with a few bits.
    """
    if similarity == "hamming":
        code = st.lists(st.sampled_from([0, 1, 3, 129, 255]), min_size=dim, max_size=dim)
        return np.array(draw(st.lists(code, min_size=2, max_size=most)), np.uint8)
    row = st.lists(st.integers(-2, 2), min_size=dim, max_size=dim).filter(any)
    values = draw(st.lists(row, min_size=2, max_size=most))
    x = np.array(values, draw(st.sampled_from([np.float16, np.float32, np.float64])))
    layout = draw(st.sampled_from(["C", "F", "strided", "reversed"]))
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "strided":
        wide = np.full((2 * len(x), 3 * dim), np.nan, x.dtype)
        wide[::2, ::3] = x
        return wide[::2, ::3]
    return x[::-1, ::-1].copy()[::-1, ::-1] if layout == "reversed" else x


def integers(n: int, most: int, least: int = 0) -> st.SearchStrategy[np.ndarray]:
    """Draw n integers, as labels or indices."""
    return st.lists(st.integers(least, most), min_size=n, max_size=n).map(np.array)


@st.composite
def exclusions(draw: st.DrawFn, n: int, items: int, has_gallery: bool) -> dict[str, object]:
    """Draw options for n queries: how unmatched queries count, and perhaps items to exclude or to
    ignore.
    """
    options: dict[str, object] = {"unmatched": draw(st.sampled_from(["skip", "zero"]))}
    if has_gallery and draw(st.booleans()):
        options["exclude"] = draw(integers(n, items - 1, -1))
    if draw(st.booleans()):
        ignored = st.sets(st.integers(0, items - 1), max_size=3)
        options["ignored"] = draw(st.lists(ignored, min_size=n, max_size=n))
    return options
