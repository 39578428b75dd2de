"""Hash counters to random numbers; draw only some rows of a random matrix.

Shapes: `N` rows of the complete matrix, `M` columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

GOLDEN = 0x9E3779B97F4A7C15  # the step of splitmix64's counter
_MASK = 0xFFFFFFFFFFFFFFFF

Word = TypeVar("Word", int, npt.NDArray[np.uint64])


def splitmix64(word: Word) -> Word:
    """Hash a 64-bit word by the finaliser of splitmix64, a bijection that spreads all bits over the
    word.

    Source: Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators, Fig. 16
    (Stafford's mix 13).

    Args:
        word: an integer in [0, 2**64), or an array of uint64.
    """
    z: Any = word
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    mixed: Word = z ^ (z >> 31)
    return mixed


def draw_rows(
    shape: tuple[int, int],
    keep: slice,
    fill: Callable[[torch.Tensor], torch.Tensor],
    *,
    block: int = 1 << 20,
) -> torch.Tensor:
    """Draw some rows of a random matrix, bit for bit as if the complete matrix were drawn.

    X = fill(empty(N, M));  return X[keep]

    Use this function to draw a rank's rows of a matrix that all ranks share. Only the kept rows and
    a block are in memory, but the generator ends in the same state as after a complete draw. On the
    CPU, torch draws in order: `uniform_` singly, and `normal_` in groups of 16. If the size isn't a
    multiple of 16, `normal_` redraws the last 16 numbers, so blocks consist of complete groups, and
    the last block is 16 numbers or more. If the default device isn't the CPU, note that the
    complete matrix will be drawn.

    Args:
        shape: N and M.
        keep: the rows to keep; they must be consecutive.
        fill: fills a tensor in place by `uniform_` or `normal_`, and returns the tensor.
        block: how many numbers to draw per call; must be a multiple of 16. Default: 2²⁰.

    Returns:
        The kept rows, in torch's default dtype.

    Raises:
        ValueError: if `block` isn't a multiple of 16, or the rows aren't consecutive.
    """
    rows, columns = shape
    first, last, step = keep.indices(rows)
    if block < 16 or block % 16 or step != 1:
        raise ValueError(
            f"block is {block} and keep is {keep}; expected a multiple of 16, and consecutive rows"
        )
    last = max(first, last)
    if (first, last) == (0, rows):
        return fill(torch.empty(shape))
    if torch.get_default_device().type != "cpu":
        return fill(torch.empty(shape))[first:last].clone()
    kept = torch.empty((last - first) * columns)
    start, stop, total = first * columns, last * columns, rows * columns
    scratch = torch.empty(min(total, block + 15))
    begin = 0
    while begin < total:
        end = total if total - begin < block + 16 else begin + block
        drawn = fill(scratch[: end - begin])
        low, high = max(start, begin), min(stop, end)
        if low < high:
            kept[low - start : high - start] = drawn[low - begin : high - begin]
        begin = end
    return kept.view(last - first, columns)
