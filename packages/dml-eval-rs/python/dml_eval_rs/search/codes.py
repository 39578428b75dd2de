"""Binary codes of embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import dml_eval_rs._native as _native
from dml_eval_rs.inputs import arguments
from dml_eval_rs.search.neighbours import to_float


def binarize(embeddings: npt.ArrayLike, threshold: float = 0.0) -> npt.NDArray[np.uint8]:
    """Binarize embeddings to (n, ceil(D / 8)) uint8 codes: a bit per number, set if the number
    exceeds the threshold.

    bit_d = [x_d > threshold], packed most significant bit first, like `numpy.packbits`; the last
    byte is padded with zeros. Zhai and Wu, "Making Classification Competitive for Deep Metric
    Learning" (2019), section 3.4, use 0.

    Args:
        embeddings: (n, D) float16, float32 or float64, finite; n can be 0.
        threshold: any number.

    Raises:
        TypeError, ValueError: as `evaluate`, or if the threshold is not a number.

    Example:
        >>> from dml_eval_rs import binarize
        >>> binarize([[0.5, -1.0, 2.0]]).tolist()  # the bits 101, and 5 padding bits
        [[160]]
    """
    rows = arguments.check_rows(embeddings, "embeddings", None, may_be_empty=True)
    return _native.binarize(rows, to_float(threshold, "threshold"))
