"""Multiply rows in half precision as they are given, with sums in float32.

A product of two float16 or two bfloat16 numbers is exact in float32. So rows aren't normalised
first, which would round each number, but multiplied as they are, and divided by their norms
afterwards. A GPU with tensor cores for bfloat16 computes such products; other devices widen the
numbers. If only one side is in half precision, tensor cores need the other side as a sum of
bfloat16 numbers: x = x₁ + x₂ + x₃ has all 24 digits of float32. Products of small parts are
omitted.

Shapes: `N` and `M` rows, `D` dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dml_losses.functional.sphere import at_least_float32

_HALF = (torch.float16, torch.bfloat16)
# How many bfloat16 numbers, of 8 digits each, have a number's digits.
_PARTS = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}


class Factor(NamedTuple):
    """Rows to multiply: `numbers` times `scale`.

    Args:
        numbers: (N, D).
        scale: (N,), in float32; None for 1.
    """

    numbers: torch.Tensor
    scale: torch.Tensor | None = None

    def select(self, rows: slice) -> Factor:
        """Return some of the rows."""
        return Factor(self.numbers[rows], None if self.scale is None else self.scale[rows])

    def product(self) -> torch.Tensor:
        """Return numbers times scale, (N, D), in at least float32."""
        return self.numbers if self.scale is None else self.numbers * self.scale[:, None]


def unit_factor(x_ND: torch.Tensor, inverse_norm_N: torch.Tensor) -> Factor:
    """Return unit rows as factors: rows in half precision keep their digits, and get a scale.

    The norms of bfloat16 rows are first changed to [1, 2) by powers of two, so that the product of
    two long rows doesn't overflow. This is exact, except for numbers that are too small to change
    the norm. The range of float16 is too small for an overflow.

    Args:
        x_ND: (N, D), not normalised.
        inverse_norm_N: (N,), in at least float32; see `inverse_norms`.
    """
    if x_ND.dtype not in _HALF:
        return Factor(x_ND * inverse_norm_N[:, None])
    if x_ND.dtype == torch.float16:
        return Factor(x_ND, inverse_norm_N)
    scale_N = torch.frexp(inverse_norm_N).mantissa  # in [1/2, 1), or 0
    power_N = torch.where(scale_N > 0, inverse_norm_N / scale_N, 0)
    return Factor((x_ND.float() * power_N[:, None]).to(x_ND.dtype), scale_N)


def multiply(x: Factor, y: Factor) -> torch.Tensor:
    """Compute all inner products of rows, (N, M), in at least float32."""
    with torch.autocast(x.numbers.device.type, enabled=False):
        if not _use_halves(x.numbers, y.numbers):
            dtype = at_least_float32(x.numbers.dtype)
            products_NM = x.numbers.to(dtype) @ y.numbers.to(dtype).T
        elif x.numbers.dtype == y.numbers.dtype:
            products_NM = multiply_halves(x.numbers, y.numbers.T)
        else:  # a single product for all pairs of parts
            pairs = _pair_parts(x.numbers, y.numbers, 3)
            left, right = (torch.cat(side, dim=1) for side in zip(*pairs, strict=True))
            products_NM = multiply_halves(left, right.T)
    if x.scale is not None:
        products_NM.mul_(x.scale[:, None])
    return products_NM if y.scale is None else products_NM.mul_(y.scale)


def add_weighted_sums_(
    sums_ND: torch.Tensor,
    weights_NM: torch.Tensor,
    y: Factor,
    *,
    parts: int,
    alpha: int = 1,
    beta: int = 1,
) -> None:
    """Compute β·sums + α·(weights @ y) in place.

    Args:
        sums_ND: (N, D), in at least float32.
        weights_NM: (N, M), in the dtype of the sums.
        y: (M, D), in this dtype or in half precision.
        parts: see `parts_for_gradient`.
        alpha, beta: numbers; if β = 0, the sums needn't be initialised.
    """
    if y.scale is not None:
        weights_NM = weights_NM * y.scale
    with torch.autocast(sums_ND.device.type, enabled=False):
        if not parts:
            sums_ND.addmm_(weights_NM, y.numbers.to(sums_ND.dtype), alpha=alpha, beta=beta)
            return
        sums_ND.mul_(beta) if beta else sums_ND.zero_()
        for weights, numbers in _pair_parts(weights_NM, y.numbers, parts):
            sums_ND.add_(multiply_halves(weights, numbers), alpha=alpha)


def parts_for_gradient(x: torch.Tensor, y: torch.Tensor) -> int:
    """Return the parts of both factors to compute x's gradient, a weighted sum of y: two if it will
    be rounded to half precision, otherwise three; 0 if nothing is multiplied in half precision.
    """
    if not _use_halves(x, y):
        return 0
    return 2 if x.dtype in _HALF else 3


def has_tensor_cores(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 numbers faster than float32 numbers, with sums
    in float32.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    # A fake tensor can have a device that this machine lacks.
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (8, 0)


def multiply_halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute x @ y in float32, for two matrices of the same dtype, float16 or bfloat16."""
    return torch.mm(x, y, torch.float32)


def _use_halves(x: torch.Tensor, y: torch.Tensor) -> bool:
    return (x.dtype in _HALF or y.dtype in _HALF) and has_tensor_cores(x.device)


def _pair_parts(
    x: torch.Tensor, y: torch.Tensor, most: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Split x and y, and pair parts i and j, whose product is about 2^(−8(i + j)) of the whole, if
    i + j < most.
    """
    x_parts, y_parts = _split(x, most), _split(y, most)
    pairs = [(a, b) for i, a in enumerate(x_parts) for b in y_parts[: most - i]]
    return pairs[::-1]  # small numbers are summed first


def _split(x: torch.Tensor, most: int) -> list[torch.Tensor]:
    """Split numbers into at most `most` bfloat16 numbers that add up to them, the largest
    first.
    """
    parts, rest = [x.to(torch.bfloat16)], x
    for _ in range(min(most, _PARTS[x.dtype]) - 1):
        rest = rest - parts[-1]  # exact, in float32
        parts.append(rest.to(torch.bfloat16))
    return parts
