"""Project rows onto the unit sphere, with enough precision for a softmax.

Shapes: `N` rows, `D` dim.
"""

from __future__ import annotations

from typing import Any

import torch

from dml_losses.functional.first_order import check_no_transforms


def full_precision(x: torch.Tensor) -> torch.Tensor:
    """Convert `x` to float32 if its dtype is narrower; otherwise return it.

    Losses compute in at least float32, since a cosine in bfloat16 has two or three digits: with a
    scale of 64, the first decimal of a logit would be wrong. The backward pass clamps the gradient
    to the narrower dtype's range, since the exact gradient of a short row (proportional to 1/norm)
    can exceed this range.
    """
    return _widen(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to sum numbers of a floating dtype."""
    return torch.promote_types(dtype, torch.float32)


def clamp_to(gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a gradient to a dtype that can be narrower; see `full_precision`."""
    if gradient.dtype == dtype:
        return gradient
    largest = torch.finfo(dtype).max
    return gradient.clamp(-largest, largest).to(dtype)


def _widen(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.dtype == dtype:
        return x
    check_no_transforms(x)
    wide: torch.Tensor = _Widen.apply(x, dtype)
    return wide


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.dtype = x.dtype
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return clamp_to(gradient, ctx.dtype), None


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Divide each row by its L2 norm.

    x̂_i = x_i / ‖x_i‖₂

    Args:
        x: (N, D), float32 or float64.

    Returns:
        (N, D). If a row's norm is below √tiny of the dtype (1e-19 for float32), or its square
        overflows (above 1e19), the row has no direction: it becomes zero, so that all its cosines
        are 0, and doesn't get a gradient.
    """
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    # Divide by infinity to get a zero row and a zero gradient; a small epsilon would give a
    # gradient of 1/epsilon.
    return x / torch.where(norm > torch.finfo(x.dtype).tiny ** 0.5, norm, torch.inf)


def inverse_norms(x_ND: torch.Tensor) -> torch.Tensor:
    """Compute 1/‖x_i‖, (N,), or 0 if a row has no direction (see `unit_rows`)."""
    norm_N = torch.linalg.vector_norm(x_ND, dim=1)
    return torch.where(
        norm_N > torch.finfo(norm_N.dtype).tiny ** 0.5, norm_N, torch.inf
    ).reciprocal_()


def through_norm_(
    gradient_ND: torch.Tensor, rows_ND: torch.Tensor, inverse_norm_N: torch.Tensor, *, unit: bool
) -> torch.Tensor:
    """Compute ∂L/∂x from ∂L/∂x̂, in place; on a CPU by blocks of rows that stay in cache.

    ∂L/∂x = (I − x̂x̂ᵀ) ∂L/∂x̂ / ‖x‖

    Args:
        gradient_ND: (N, D), ∂L/∂x̂ if `unit`, else ∂L/∂x̂ / ‖x‖.
        rows_ND: (N, D), x̂ if `unit`, else x.
        inverse_norm_N: (N,); see `inverse_norms`.
        unit: whether the rows are normalised.

    Returns:
        `gradient_ND`, overwritten.
    """
    tensors = (gradient_ND, rows_ND, inverse_norm_N[:, None])
    step = 1024 if gradient_ND.device.type == "cpu" else max(len(gradient_ND), 1)
    for gradient, rows, inverse in zip(*(torch.split(tensor, step) for tensor in tensors)):
        direction = rows if unit else rows * inverse
        dot = (gradient * direction).sum(dim=1, keepdim=True)
        gradient.addcmul_(direction, dot, value=-1)
        if unit:
            gradient.mul_(inverse)
    return gradient_ND


def both_double(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert both tensors to float64 if either is float64; otherwise return them."""
    if torch.float64 not in (x.dtype, y.dtype):
        return x, y
    return _widen(x, torch.float64), _widen(y, torch.float64)


def common_precision(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert both tensors to `full_precision`, or to float64 if either is float64."""
    x, y = both_double(x, y)
    return full_precision(x), full_precision(y)


def cosines(x_ND: torch.Tensor, y_MD: torch.Tensor) -> torch.Tensor:
    """Compute the cosines between all rows of both tensors, (N, M); see `unit_rows` for zero
    rows.
    """
    with torch.autocast(x_ND.device.type, enabled=False):
        return unit_rows(x_ND) @ unit_rows(y_MD).T
