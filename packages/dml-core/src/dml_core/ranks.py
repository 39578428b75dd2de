"""Find this process's rank in a `torch.distributed` group, and gather rows from all ranks.

Shapes: `W` ranks, `R` rows per rank, `B` = Σ R rows of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import distributed


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks: (0, 1) if a process group is not
    initialised.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def all_gather_rows(
    rows: torch.Tensor,
    counts: Sequence[int] | None = None,
    *,
    gradients: Literal["mean", "sum"] = "sum",
) -> torch.Tensor:
    """Gather the rows of all ranks, in the order of the ranks; the gradient flows to this rank's
    rows.

    X = x_1 ∪ … ∪ x_W;
    ∂L/∂x_r = (∂L/∂X)[rows of r] for ``"sum"``, W · (∂L/∂X)[rows of r] for ``"mean"``

    Use this function if all ranks compute a single loss L(X), and ``torch.distributed.nn`` to
    compute different losses. Since the gradient of all rows is known on all ranks, the backward
    pass only slices and does not communicate. Parameters that produced the rows will receive this
    rank's part of the gradient. The sum of these parts is the gradient; so is the average, which
    DistributedDataParallel computes, if ``"mean"`` multiplies the parts by W.

    Args:
        rows: (R, …), any dtype. The other dimensions and the dtype must be equal on all ranks.
        counts: the R of all ranks, in the order of the ranks; can be omitted if R is equal on all
            ranks.
        gradients: how the ranks combine the parameters' gradients afterwards. Default: ``"sum"``.

    Returns:
        (B, …), equal on all ranks. If a process group is not used, or there is only one rank,
        `rows` itself.

    Raises:
        ValueError: if `gradients` is unknown, or `counts` doesn't match the number of ranks or
            these rows.
    """
    if gradients not in ("mean", "sum"):
        raise ValueError(f"gradients is {gradients!r}; expected 'mean' or 'sum'")
    rank, world_size = rank_and_world_size()
    counts = [len(rows)] * world_size if counts is None else list(counts)
    if len(counts) != world_size or counts[rank] != len(rows):
        raise ValueError(
            f"counts is {counts}; expected a number for each of {world_size} ranks, and "
            f"{len(rows)} for rank {rank}, whose rows have shape {tuple(rows.shape)}"
        )
    if world_size == 1:
        return rows
    gathered: torch.Tensor = _AllGatherRows.apply(
        rows, counts, rank, world_size if gradients == "mean" else 1
    )
    return gathered


class _AllGatherRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, counts: list[int], rank: int, factor: int
    ) -> torch.Tensor:
        ctx.own, ctx.factor = slice(sum(counts[:rank]), sum(counts[: rank + 1])), factor
        most = max(counts)
        if len(rows) < most:  # the collective needs the same number of rows from all ranks
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
