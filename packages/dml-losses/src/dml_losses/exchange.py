"""What ranks exchange when each computes a part of one loss, and how its gradient becomes whole.

Every rank has the value L of the loss, and back-propagates its share L/W (`divide_gradient_by_ranks`). The gradient of
a number that is summed over the ranks (`sum_over_ranks`), and that of an input which is the same on all ranks
(`sum_gradient_over_ranks`), is the sum of the ranks' gradients. The shares add up to L, so these sums are the gradient
of L, whatever operations lie between.

Shapes: `B` rows of the batch, `O` of them whose true class this rank has.

Without a process group this rank is the only one, and nothing is exchanged.
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
    """Combine these numbers over all ranks, in place and without gradient; every rank gets the same bits."""
    if rank_and_world_size()[1] > 1:
        distributed.all_reduce(numbers, operation)
    return numbers


def sum_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    """Compute Σ_r x_r, the same on every rank. Backwards, the ranks' gradients are summed."""
    value: torch.Tensor = _SumOverRanks.apply(numbers)
    return value


def sum_gradient_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    """Return x, which is the same on every rank. Backwards, the ranks' gradients are summed."""
    return _with_gradient(numbers, lambda gradient: all_reduce_(gradient.clone()))


def divide_gradient_by_ranks(value: torch.Tensor) -> torch.Tensor:
    """Return L, which is the same on every rank. Backwards, each rank's gradient is divided by W."""
    return _with_gradient(value, lambda gradient: gradient / rank_and_world_size()[1])


def find_owned(labels_B: torch.Tensor, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the rows whose true class this rank has, (O,), and the class's column on this rank, (O,)."""
    column_B = labels_B.long() - first
    own_O = ((column_B >= 0) & (column_B < count)).nonzero().squeeze(1)
    return own_O, column_B[own_O]


class BlocksOfRank:
    """This rank's blocks of the queries of a batch that all ranks have, consecutive ones.

    The blocks don't depend on the number of ranks, so neither does any bit of a row's gradient or of a block's sums.

    Args:
        num_queries: B.
        device: of the rows; on a CPU, blocks are small enough for its caches.
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
        """Return (B, D), all ranks' rows, given one of which this rank's rows are set."""
        return all_gather_rows(rows[self._own], self._rows)

    def gather_blocks(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return one row for each of the N blocks, in their order, given those of this rank."""
        return all_gather_rows(numbers, self._blocks)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor) -> torch.Tensor:
        return all_reduce_(numbers.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return all_reduce_(gradient.clone())


def _with_gradient(numbers: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    same = numbers.view_as(numbers)
    if same.requires_grad:
        same.register_hook(change)  # type: ignore[no-untyped-call]
    return same
