"""What ranks exchange when each computes a part of one loss, and how its gradient comes out whole.

Every rank has the value L of the loss, and back-propagates its share L/W of it (`shared_out`). A number that is summed
over the ranks (`summed`) lets back the sum of what all ranks make of it, and so does what every rank came with
(`in_common`). The shares add up to L, so what arrives is its gradient, whatever lies between.

Without a process group this rank is the only one, and nothing is exchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed


def place() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def reduced_(
    numbers: torch.Tensor, operation: distributed.ReduceOp.RedOpType = distributed.ReduceOp.SUM
) -> torch.Tensor:
    """These numbers, combined over all ranks in place and without gradient; every rank gets the same bits."""
    if place()[1] > 1:
        distributed.all_reduce(numbers, operation)
    return numbers


def summed(numbers: torch.Tensor) -> torch.Tensor:
    """Σ_r x_r, the same on every rank."""
    value: torch.Tensor = _Summed.apply(numbers)
    return value


def in_common(numbers: torch.Tensor) -> torch.Tensor:
    """x, with which every rank comes, and whose gradient is the sum of the ranks' own."""
    value: torch.Tensor = _InCommon.apply(numbers)
    return value


def shared_out(value: torch.Tensor) -> torch.Tensor:
    """L, which every rank has, and of which each back-propagates L/W."""
    same: torch.Tensor = _SharedOut.apply(value)
    return same


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor) -> torch.Tensor:
        return reduced_(numbers.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return reduced_(gradient.clone())


class _InCommon(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.view_as(numbers)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return reduced_(gradient.clone())


class _SharedOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / place()[1]
