"""Rows onto the unit sphere, in a precision that a softmax can be trusted to.

Shapes: `N` rows, `D` dim.
"""

from __future__ import annotations

from typing import Any

import torch


def full_precision(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32 if it is narrower, itself otherwise.

    A cosine in bfloat16 has two or three digits, and times a scale of 64 that is a logit wrong in its first
    decimal; so losses compute in float32 at least. The gradient is clamped into the narrower dtype's range on
    its way back, since the exact gradient of a short row (proportional to 1/norm) need not fit there.
    """
    return _widened(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _widened(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.dtype == dtype:
        return x
    wide: torch.Tensor = _Widen.apply(x, dtype)
    return wide


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.dtype = x.dtype
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        largest = torch.finfo(ctx.dtype).max
        return gradient.clamp(-largest, largest).to(ctx.dtype), None


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Each row over its L2 norm.

    x̂_i = x_i / ‖x_i‖₂

    Args:
        x: (N, D), float32 or float64.

    Returns:
        (N, D). A row whose norm is below √tiny of its dtype (1e-19 for float32), or whose square overflows (above
        1e19), has no direction: it becomes zero, is therefore at cosine 0 from everything, and receives no gradient.
    """
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    # Dividing by infinity gives the zero row and a zero gradient, where dividing by a small epsilon would give
    # a gradient of 1/epsilon.
    return x / torch.where(norm > torch.finfo(x.dtype).tiny ** 0.5, norm, torch.inf)


def inverse_norms(x_ND: torch.Tensor) -> torch.Tensor:
    """1/‖x_i‖, (N,), and 0 for a row that has no direction (see `unit_rows`)."""
    norm_N = torch.linalg.vector_norm(x_ND, dim=1)
    return torch.where(norm_N > torch.finfo(norm_N.dtype).tiny ** 0.5, norm_N, torch.inf).reciprocal_()


def through_norm_(
    gradient_ND: torch.Tensor, rows_ND: torch.Tensor, inverse_norm_N: torch.Tensor, *, unit: bool
) -> torch.Tensor:
    """∂L/∂x from ∂L/∂x̂, in place and a few rows at a time, so that it stays in cache.

    ∂L/∂x = (I − x̂x̂ᵀ) ∂L/∂x̂ / ‖x‖

    Args:
        gradient_ND: (N, D), ∂L/∂x̂ if the rows are `unit`, or that already over ‖x‖ if they aren't.
        rows_ND: (N, D), x̂ if `unit`, else x.
        inverse_norm_N: (N,), as `inverse_norms`.
        unit: which of the two came.

    Returns:
        The gradient that came, changed.
    """
    for gradient, rows, inverse in zip(
        *(torch.split(tensor, 1024) for tensor in (gradient_ND, rows_ND, inverse_norm_N[:, None]))
    ):
        direction = rows if unit else rows * inverse
        gradient.sub_(direction * (gradient * direction).sum(dim=1, keepdim=True))
        if unit:
            gradient.mul_(inverse)
    return gradient_ND


def common_precision(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in `full_precision`, and in float64 if either is."""
    x, y = full_precision(x), full_precision(y)
    dtype = torch.promote_types(x.dtype, y.dtype)
    return _widened(x, dtype), _widened(y, dtype)


def cosines(x_ND: torch.Tensor, y_MD: torch.Tensor) -> torch.Tensor:
    """The cosine of every row of one with every row of the other, (N, M); see `unit_rows` for zero rows."""
    with torch.autocast(x_ND.device.type, enabled=False):
        return unit_rows(x_ND) @ unit_rows(y_MD).T
