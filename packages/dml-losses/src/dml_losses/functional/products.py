"""Multiply float32 matrices on a GPU's tensor cores without losing digits.

Tensor cores multiply numbers in half precision about sixteen times as fast as float32 numbers, and
sum in float32. A float32 number is the sum of two float16 numbers, of 11 digits each (relative to
1), or of three bfloat16 numbers, of 8 digits each, which have the range of float32. The product of
two such sums needs three or six products of parts, since products of small parts are omitted. Other
devices, and float64, multiply as usual.

Shapes: `N` and `M` rows, `D` dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch

# The left and the right part of each product for cosines: large · small, small · large, and at last
# large · large, since tensor cores round each time that they add to a large sum.
_LEFT, _RIGHT = (0, 1, 0), (1, 0, 0)
# How many bfloat16 numbers have the digits of a float32 number.
ALL_PARTS = 3
# The largest length of a row to multiply in float16.
LARGEST_FACTOR = 2**15
# Fewer multiplications take no longer in float32, measured on an H200: to start the kernels that
# split numbers takes the time that is saved.
_FEWEST_MULTIPLICATIONS = 2**34


def pays_in_parts(x_ND: torch.Tensor, num_columns: int) -> bool:
    """Return whether to multiply these rows in parts, with `num_columns` rows of the same dim."""
    multiplications = x_ND.shape[0] * x_ND.shape[1] * num_columns
    return (
        x_ND.dtype == torch.float32
        and multiplications >= _FEWEST_MULTIPLICATIONS
        and has_tensor_cores(x_ND.device)
    )


def left_factor(x_ND: torch.Tensor, in_parts: bool) -> torch.Tensor:
    """Return rows as the left factor of `multiply`: (N, 3D) in float16 if they are multiplied in
    parts, otherwise the rows.

    Args:
        x_ND: (N, D), unit rows times a number of at most `LARGEST_FACTOR`. In parts, numbers have
            an error of 2^−22, or an absolute error of 2^−25.
        in_parts: see `pays_in_parts`.
    """
    return _concatenate(x_ND, _LEFT) if in_parts else x_ND


def right_factor(y_MD: torch.Tensor, in_parts: bool) -> torch.Tensor:
    """Return rows as the right factor of `multiply`; see `left_factor`."""
    return _concatenate(y_MD, _RIGHT) if in_parts else y_MD


def multiply(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute all inner products of rows, (N, M), in float32 (float64 for float64).

    Args:
        left, right: see `left_factor` and `right_factor`.
        out: the tensor to write, if given.
    """
    with torch.autocast(left.device.type, enabled=False):
        if left.dtype == torch.float16:
            return multiply_halves(left, right.T, out)
        return torch.mm(left, right.T, out=out)


def split(x: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
    """Split a matrix into bfloat16 matrices that add up to it, the largest first; for 0 parts,
    return the matrix.
    """
    if not parts:
        return (x,)
    return _split(x, tuple(range(parts)), torch.bfloat16).unbind(1)


def add_product_(
    sums_ND: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    rows: tuple[torch.Tensor, ...],
    *,
    alpha: int = 1,
    beta: int = 1,
) -> None:
    """Compute β·sums + α·(weights @ rows) in place.

    Args:
        sums_ND: (N, D).
        weights, rows: (N, M) and (M, D), both from `split`. If both have two parts, the error is
            about 2e-6 of the largest sum; if both have three, it is as small as in float32.
        alpha, beta: numbers; if β = 0, the sums needn't be initialised.
    """
    with torch.autocast(sums_ND.device.type, enabled=False):
        if weights[0].dtype != torch.bfloat16:
            sums_ND.addmm_(weights[0], rows[0], alpha=alpha, beta=beta)
            return
        # Parts i and j have a product of about 2^(−8(i + j)). Small numbers are summed first.
        pairs = [(a, b) for i, a in enumerate(weights) for b in rows[: ALL_PARTS - i]]
        for a, b in reversed(pairs):
            add_halves_(sums_ND, a, b, alpha, beta)
            beta = 1


def has_tensor_cores(device: torch.device) -> bool:
    """Return whether the device multiplies half precision faster than float32, with sums in
    float32.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    # A fake tensor can have a device that this machine lacks.
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (8, 0)


def multiply_halves(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute x @ y in float32, for two matrices in half precision."""
    return torch.mm(x, y, torch.float32, out=out)


def add_halves_(
    sums: torch.Tensor, x: torch.Tensor, y: torch.Tensor, alpha: int, beta: int
) -> None:
    """Compute β·sums + α·(x @ y) in place, in float32, for two matrices in half precision."""
    torch.addmm(sums, x, y, torch.float32, beta=beta, alpha=alpha, out=sums)


def _concatenate(x_ND: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    return _split(x_ND, order, torch.float16).flatten(1)


def _split(x: torch.Tensor, order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Split numbers (N, M) into parts that add up to them; return the parts in this order, where 0
    is the largest, (N, P, M).
    """
    if x.is_cuda and (kernel := _split_kernel()) is not None:
        return kernel(x, order, dtype)
    halves, rest = [x.to(dtype)], x
    for _ in range(max(order)):
        rest = rest - halves[-1].to(x.dtype)  # exact
        halves.append(rest.to(dtype))
    with torch.autocast(x.device.type, enabled=False):  # whose dtype can't be stacked with others
        return torch.stack([halves[part] for part in order], dim=1)


@cache
def _split_kernel() -> Callable[..., torch.Tensor] | None:
    """Return the kernel that splits in a single pass, or None if Triton is missing or can't compile
    it.
    """
    if not torch.cuda.is_available():
        return None  # fake tensors on a GPU that this machine lacks
    try:
        from dml_losses.functional.split_kernel import split_in_one_pass

        split_in_one_pass(torch.zeros(1, 1, device="cuda"), (0,), torch.bfloat16)
    except ImportError:
        return None
    except Exception as error:
        warnings.warn(
            f"Triton can't compile a kernel ({error}), so large batches take about 1.4 times as "
            "long; it needs a C compiler and Python's headers",
            stacklevel=2,
        )
        return None
    return split_in_one_pass
