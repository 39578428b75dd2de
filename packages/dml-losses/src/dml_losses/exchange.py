"""Exchange numbers between ranks that each compute a part of a loss, so that gradients are
complete.

All ranks have the value L of the loss, and back-propagate a share L/W (`divide_gradient_by_ranks`).
If a number is summed over the ranks (`sum_over_ranks`), or an input is the same on all ranks
(`sum_gradient_over_ranks`), its gradient is the sum of the ranks' gradients. Since the shares add
up to L, these sums are the gradient of L, for any operations in between. If there is no process
group, this rank is the only one, and doesn't exchange anything.

Shapes: `B` rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import distributed

from dml_core import all_gather_rows, rank_and_world_size

_MOST_BLOCKS, _FEWEST_ROWS, _MOST_CPU_ROWS = 64, 16, 128


def all_reduce_(
    numbers: torch.Tensor, operation: distributed.ReduceOp.RedOpType = distributed.ReduceOp.SUM
) -> torch.Tensor:
    """Combine these numbers over all ranks, in place and without gradient; all ranks get the same
    bits.
    """
    if rank_and_world_size()[1] > 1:
        distributed.all_reduce(numbers, operation)
    return numbers


def sum_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    """Compute Σ_r x_r, the same on all ranks. The backward pass sums the ranks' gradients."""
    value: torch.Tensor = _SumOverRanks.apply(numbers)
    return value


def sum_gradient_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    """Return x, which must be the same on all ranks. The backward pass sums the ranks'
    gradients.
    """
    return _with_gradient(numbers, lambda gradient: all_reduce_(gradient.clone()))


def divide_gradient_by_ranks(value: torch.Tensor) -> torch.Tensor:
    """Return L, which must be the same on all ranks. The backward pass divides each rank's gradient
    by W.
    """
    return _with_gradient(value, lambda gradient: gradient / rank_and_world_size()[1])


class BlocksOfRank:
    """The consecutive blocks of queries that this rank computes, in a batch that all ranks have.

    Blocks don't depend on the number of ranks, so this number changes no bit in a row's gradient or
    in a block's sums.

    Args:
        num_queries: B.
        device: the device of the rows. On a CPU, blocks are small enough to fit in its caches.
    """

    def __init__(self, num_queries: int, device: torch.device) -> None:
        rank, world_size = rank_and_world_size()
        step = max(-(-num_queries // _MOST_BLOCKS), _FEWEST_ROWS)
        step = min(step, _MOST_CPU_ROWS) if device.type == "cpu" else step
        blocks = -(-num_queries // step)
        bounds = [blocks * each // world_size for each in range(world_size + 1)]
        rows = [min(bound * step, num_queries) for bound in bounds]
        self.starts = range(rows[rank], rows[rank + 1], step)
        self._own = slice(rows[rank], rows[rank + 1])
        self._blocks, self._rows = (
            [stop - start for start, stop in pairwise(ends)] for ends in (bounds, rows)
        )

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather all ranks' rows, (B, D), given a tensor of this shape that contains this rank's
        rows.
        """
        return all_gather_rows(rows[self._own], self._rows)

    def gather_blocks(self, numbers: torch.Tensor) -> torch.Tensor:
        """Gather a row per block, in the order of the N blocks, given the rows for this rank's
        blocks.
        """
        return all_gather_rows(numbers, self._blocks)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor) -> torch.Tensor:
        return all_reduce_(numbers.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return all_reduce_(gradient.clone())


def _with_gradient(
    numbers: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    same = numbers.view_as(numbers)
    if same.requires_grad:
        same.register_hook(change)  # type: ignore[no-untyped-call]
    return same
