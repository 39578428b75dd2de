"""SigLIP of the global batch, of which each rank computes the pairs of some queries.

Shapes: `B` batch, `D` dim, `N` blocks of queries.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dml_core import all_gather_rows, rank_and_world_size
from dml_losses.arguments import check_batch
from dml_losses.functional.siglip import siglip_and_gradients
from dml_losses.functional.sphere import full_precision

_MOST_BLOCKS, _FEWEST_ROWS, _MOST_CPU_ROWS = 64, 16, 128


class BlocksOfRank:
    """This rank's blocks of the queries, consecutive ones; a `SigLIPShare`.

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


def spread_siglip(
    embeddings: torch.Tensor, labels: torch.Tensor, log_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Compute `dml_losses.functional.siglip` of a batch that all ranks have, each for some of the queries.

    A rank computes 1/W of the pairs. Ranks exchange three numbers for each block of queries, and the gradient (B, D).
    Value and gradients are the same bits on every rank, and on any number of ranks of one kind of device and threads.

    Args:
        embeddings: (B, D), the same on every rank.
        labels: (B,), the same on every rank.
        log_scale, bias: as `siglip`, the same on every rank.

    Returns:
        The loss, a scalar; each rank's gradients are whole.
    """
    check_batch(embeddings, labels)
    rows = full_precision(embeddings)
    log_scale, bias = (full_precision(number).to(rows.dtype) for number in (log_scale, bias))
    value: torch.Tensor = _SpreadSigLIP.apply(rows, labels.long(), log_scale, bias)
    return value


class _SpreadSigLIP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, labels: torch.Tensor, log_scale: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        moves = ctx.needs_input_grad[0]
        share = BlocksOfRank(len(rows), rows.device)
        value, gradient, _, numbers = siglip_and_gradients(
            rows, labels, rows, labels, log_scale, bias, True, moves, moves, share
        )
        ctx.save_for_backward(gradient, numbers)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient, numbers = ctx.saved_tensors
        log_scale, bias = (numbers * upstream).unbind()
        return gradient * upstream if ctx.needs_input_grad[0] else None, None, log_scale, bias
