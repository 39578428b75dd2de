"""A Triton kernel that splits float32 numbers into numbers in half precision, in a single pass.

PyTorch needs a pass for each rounding and each difference, and such passes take most of a step's
time on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 2048  # numbers per program: 16 for each of 128 threads


def split_in_one_pass(x: torch.Tensor, order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Split numbers into parts in half precision that add up to them.

    Args:
        x: (N, M), float32 on a GPU.
        order: the parts to write, in this order: 0 is the largest; at most 3.
        dtype: float16 or bfloat16.

    Returns:
        (N, P, M) for P parts to write.
    """
    if x.stride(1) != 1:  # a transposed matrix; the kernel reads consecutive numbers of a row
        x = x.contiguous()
    (num_rows, num_columns), places = x.shape, len(order)
    parts = x.new_empty(num_rows, places, num_columns, dtype=dtype)
    columns = min(triton.next_power_of_2(max(num_columns, 1)), _TILE)
    rows = _TILE // columns
    if x.numel():
        grid = (triton.cdiv(num_rows, rows), triton.cdiv(num_columns, columns))
        code = sum(part << 2 * place for place, part in enumerate(order))
        sizes = (num_rows, num_columns, x.stride(0))
        # Triton starts kernels on the current device.
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _split[grid](x, parts, *sizes, code, places, max(order) + 1, rows, columns)
    return parts


@triton.jit  # type: ignore[untyped-decorator]
def _split(  # type: ignore[no-untyped-def]
    x,
    parts,
    num_rows,
    num_columns,
    stride,
    CODE: tl.constexpr,
    PLACES: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < num_rows) & (column < num_columns)
    rest = tl.load(x + row * stride + column, mask=inside)
    for part in tl.static_range(PARTS):
        half = rest.to(parts.dtype.element_ty)
        for place in tl.static_range(PLACES):
            if (CODE >> (2 * place)) & 3 == part:
                tl.store(parts + (row * PLACES + place) * num_columns + column, half, mask=inside)
        rest -= half.to(tl.float32)  # exact
