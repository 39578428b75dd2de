"""Ranks: several processes that take each step together, started by torchrun or by ``dml train --nproc``.

Every rank embeds its rows of the global batch, all rows are gathered, and every rank computes the loss of the
whole global batch. So a loss, and any queue in it, sees the same rows in the same order on every rank and needn't
know that there are ranks; and W ranks take the steps of one process, to rounding.

Shapes: `W` ranks, `R` rows of a rank, `B` = W · R rows of the global batch, `D` embedding dimension.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dml_core import DmlError

LOST = "lost another rank"  # in what a rank says of another one's end
# Groups that this process has left stay in memory. Whoever drops the last reference to one waits for gloo's threads
# with the interpreter locked, and one of them, still letting go of a tensor, may wait for that very lock (torch 2.11).
_left: list[dist.ProcessGroup | None] = []
T = TypeVar("T")
Number = TypeVar("Number", bound=np.number[Any])


class _Gather(torch.autograd.Function):
    """All ranks' rows in the order of the ranks; backwards, this rank's rows of the gradient.

    Every rank computes the whole loss, so the gradient of all rows is known everywhere and nothing need be
    reduced.
    """

    @staticmethod
    def forward(ctx: Any, rows_RD: Tensor, rank: int, world_size: int) -> Tensor:
        ctx.rank, ctx.rows = rank, len(rows_RD)
        gathered_BD = rows_RD.new_empty(world_size * len(rows_RD), *rows_RD.shape[1:])
        dist.all_gather_into_tensor(gathered_BD, rows_RD.contiguous())
        return gathered_BD

    @staticmethod
    def backward(ctx: Any, gradient_BD: Tensor) -> tuple[Tensor, None, None]:
        first = ctx.rank * ctx.rows
        return gradient_BD[first : first + ctx.rows], None, None


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among those that train together. A single process is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # the place among those of this machine, which is also the number of its GPU
    local_world_size: int = 1  # how many this machine has

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    @property
    def threads(self) -> int:
        """This rank's share of the cores that it may run on, at least 1."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // self.local_world_size)

    def all_gather_with_gradient(self, rows_RD: Tensor) -> Tensor:
        """All ranks' rows, (W · R, D), with gradient."""
        if self.world_size == 1:
            return rows_RD
        gathered_BD: Tensor = _Gather.apply(rows_RD, self.rank, self.world_size)
        return gathered_BD

    def replicate(self, model: nn.Module) -> nn.Module:
        """The model as it is to be called in training: its gradients become means over the ranks."""
        if self.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        # A forward begins with the first rank's buffers; `Replica` sees to it that a step ends with them, too.
        replica: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return replica

    @torch.no_grad()
    def sum_gradients(self, replicated: Iterable[nn.Parameter]) -> None:
        """Make sums of the means over the ranks that a replicated model's gradients are.

        Not beforehand: the gradients of float16 activations would leave their range on many ranks sooner than on few.
        """
        gradients = [parameter.grad for parameter in replicated if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, self.world_size)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make gradients that every rank computed alike the same to the bit, as atomics on a GPU don't."""
        if self.world_size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                continue
            shared = parameter.grad
            if shared.is_sparse:  # the same rows everywhere, since what chose them is the same
                parameter.grad = shared.coalesce()
                shared = parameter.grad.values()
            dist.all_reduce(shared)
            shared /= self.world_size

    def run_on_first(self, function: Callable[[], T]) -> T:
        """What the function returns, or raises, on the first rank; the others wait and get the same.

        Raises:
            DmlError: what the function raised, on every rank.
        """
        if self.world_size == 1:
            return function()
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = function()
            except DmlError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    def all_gather(self, rows: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """All ranks' rows in the order of the ranks; each has as many as it has."""
        if self.world_size == 1:
            return rows
        lengths = torch.zeros(self.world_size, dtype=torch.int64)
        lengths[self.rank] = len(rows)
        dist.all_reduce(lengths)
        parts = [np.empty((length, *rows.shape[1:]), rows.dtype) for length in lengths.tolist()]
        parts[self.rank] = np.ascontiguousarray(rows)
        sent = [
            dist.broadcast(torch.from_numpy(part), src=rank, async_op=True)
            for rank, part in enumerate(parts)
            if part.size
        ]
        for work in filter(None, sent):
            work.wait()
        return np.concatenate(parts)

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sums over all ranks, entry by entry."""
        sums = np.array(counts)
        if self.world_size > 1:
            dist.all_reduce(torch.from_numpy(sums))
        return sums

    def gather_object(self, part: T) -> list[T]:
        """Every rank's part, in the order of the ranks; an empty list on all but the first."""
        if self.world_size == 1:
            return [part]
        parts: list[Any] = [None] * self.world_size if self.is_first else []
        dist.gather_object(part, parts if self.is_first else None, dst=0)
        return parts


SINGLE_PROCESS = Ranks()


class Agreement:
    """A number on which all ranks agree, the largest that any of them gave, one call late.

    Being late lets the exchange go on beside a step, so that no step waits for it.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pending: tuple[Tensor, Any] | None = None

    def __call__(self, number: int) -> int:
        """What was agreed on in the call before; with one rank, the number itself."""
        if self._ranks.world_size == 1:
            return number
        agreed = 0
        if self._pending is not None:
            value, work = self._pending
            work.wait()
            agreed = int(value)
        value = torch.tensor(number)
        self._pending = value, dist.all_reduce(value, dist.ReduceOp.MAX, async_op=True)
        return agreed


@contextmanager
def join(timeout: float) -> Iterator[Ranks]:
    """Join the ranks that torchrun started, if it did, for as long as this lasts.

    Args:
        timeout: seconds after which a rank that waits for another one gives up.

    Raises:
        DmlError: where another rank died, or kept this one waiting for too long.
    """
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield Ranks()
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    # CPU tensors (agreements, Python objects) go by gloo also where gradients go by NCCL.
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    patience = timedelta(seconds=timeout)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store, *_ = next(dist.rendezvous("env://", timeout=patience))  # type: ignore[attr-defined]
        # torchrun's store outlives a restart. Under a name of its own, no attempt reads where a dead rank had listened.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"attempt_{attempt}", store),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world_size,
            timeout=patience,
        )
        yield Ranks(rank, world_size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # gloo has no class of its own
            raise
        raise DmlError(
            f"rank {rank} of {world_size} {LOST}, which died or was silent for {timeout:g} s "
            "(training.timeout); see what that one says, then go on with --resume"
        ) from error
    finally:
        if dist.is_initialized():
            _left.append(dist.group.WORLD)
            dist.destroy_process_group()


def is_first_process() -> bool:
    """Whether this process is rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def was_restarted() -> bool:
    """Whether torchrun has started this run anew after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
