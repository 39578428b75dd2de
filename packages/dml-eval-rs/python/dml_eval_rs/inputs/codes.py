"""Binary codes of embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments


def binarize(embeddings: npt.ArrayLike, threshold: float = 0.0) -> npt.NDArray[np.uint8]:
    """Binarize embeddings: one bit per number, set where the number is above the threshold.

    bit_d = [x_d > threshold], packed most significant bit first, as `numpy.packbits` does; the last byte is
    padded with zeros. Zhai and Wu, "Making Classification Competitive for Deep Metric Learning" (2019),
    section 3.4, with threshold 0.

    Args:
        embeddings: (n, D) float16, float32 or float64, finite; n may be 0.
        threshold: any number.

    Returns:
        (n, ceil(D / 8)) uint8.

    Raises:
        TypeError: if the embeddings aren't floats, or the threshold is no number.
        ValueError: if a number isn't finite, or the array isn't two-dimensional or has no columns.

    Example:
        >>> from dml_eval_rs import binarize
        >>> binarize([[0.5, -1.0, 2.0]]).tolist()  # the bits 101, and five of padding
        [[160]]
    """
    checked = arguments.check_rows(embeddings, "embeddings", "cosine", may_be_empty=True)
    try:
        limit = float(threshold)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"threshold is a {type(threshold).__name__}; expected a number that a float holds"
        ) from error
    return _native.binarize(checked, limit)
