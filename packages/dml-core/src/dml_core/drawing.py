"""Random matrices of which a rank keeps some rows, with the values of all rows drawn at once.

Shapes: `N` rows of the whole matrix, `M` columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


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
