"""Ranks: the processes of a `torch.distributed` group, and the rows that they gather for one loss.

Shapes: `W` ranks, `R` rows of a rank, `B` = Σ R rows of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import distributed


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: 0 of 1 without an initialised process group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def all_gather_rows(
    rows: torch.Tensor, counts: Sequence[int] | None = None, *, gradients: Literal["mean", "sum"] = "sum"
) -> torch.Tensor:
    """Gather all ranks' rows in the order of the ranks, with the gradient of this rank's own rows.

    X = x_1 ∪ … ∪ x_W;  ∂L/∂x_r = (∂L/∂X)[rows of r] for ``"sum"``, W · (∂L/∂X)[rows of r] for ``"mean"``

    It is for a loss L(X) that every rank computes whole (the gathers of ``torch.distributed.nn`` are for losses that
    differ). Each rank then has the gradient of all rows, so the backward pass exchanges nothing and slices.
    Parameters behind the rows get their rank's part of the gradient: the parts' sum is the whole, and so is, by the
    factor W, their average, which DistributedDataParallel computes.

    Args:
        rows: (R, …), any dtype. The other dimensions and the dtype are the same on every rank.
        counts: R of every rank, in the order of the ranks; omit it if R is the same on every rank.
        gradients: how the ranks combine the parameters' gradients afterwards.

    Returns:
        (B, …), the same on every rank. Without a process group, or with one rank: `rows` itself.

    Raises:
        ValueError: for another `gradients`, or `counts` that don't fit the number of ranks or these rows.
    """
    if gradients not in ("mean", "sum"):
        raise ValueError(f"gradients is {gradients!r}; expected 'mean' or 'sum'")
    rank, world_size = rank_and_world_size()
    counts = [len(rows)] * world_size if counts is None else list(counts)
    if len(counts) != world_size or counts[rank] != len(rows):
        raise ValueError(
            f"counts is {counts}; expected a number for each of {world_size} ranks, and {len(rows)} for rank {rank}, "
            f"whose rows have shape {tuple(rows.shape)}"
        )
    if world_size == 1:
        return rows
    gathered: torch.Tensor = _AllGatherRows.apply(
        rows, counts, rank, world_size if gradients == "mean" else 1
    )
    return gathered


class _AllGatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: list[int], rank: int, factor: int) -> torch.Tensor:
        ctx.own, ctx.factor = slice(sum(counts[:rank]), sum(counts[: rank + 1])), factor
        most = max(counts)
        if len(rows) < most:  # the collective takes as many rows of each rank
            rows = torch.cat((rows, rows.new_zeros(most - len(rows), *rows.shape[1:])))
        gathered = rows.new_empty(len(counts) * most, *rows.shape[1:])
        distributed.all_gather_into_tensor(gathered, rows.contiguous())
        if min(counts) == most:
            return gathered
        return torch.cat([part[:count] for part, count in zip(torch.split(gathered, most), counts)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        own = gradient[ctx.own]
        return own if ctx.factor == 1 else own * ctx.factor, None, None, None
