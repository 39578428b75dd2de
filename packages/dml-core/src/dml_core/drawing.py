"""Random numbers: hashed counters, and matrices of which a rank keeps some rows, as if all rows were drawn.

Shapes: `N` rows of the whole matrix, `M` columns.
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
    """Apply the finaliser of splitmix64: a bijection of 64-bit words that spreads every bit over the word.

    Source: Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators, Fig. 16 (Stafford's mix 13).

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
    """Draw a random matrix in blocks, and keep some of its rows.

    X = fill(empty(N, M)), of which X[keep] is returned

    The bits are those of one draw of the whole matrix, and the generator ends in the same state; the memory is that of
    the kept rows and one block. On the CPU, torch draws a matrix's numbers one after another: `uniform_` singly,
    `normal_` in groups of 16, of which it draws the last one again if the size isn't a multiple of 16. So a block
    has whole groups, and the last block has at least 16 numbers. On another default device the matrix is drawn whole.

    Args:
        shape: N and M.
        keep: the rows to keep, consecutive.
        fill: fills a tensor by `uniform_` or `normal_` in place, and returns it.
        block: numbers in a block, a multiple of 16.

    Returns:
        The kept rows, of torch's default dtype.

    Raises:
        ValueError: for another `block`, or rows that aren't consecutive.
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
