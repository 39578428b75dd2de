"""Ranks: processes that take steps together, started by torchrun or by ``dml train --nproc``.

A rank embeds a part of the global batch, gathers all rows, and computes the loss of this batch. A
loss, and any queue in it, therefore sees identical rows in the same order on every rank and doesn't
need code for ranks. W ranks take the same steps as a single process, up to rounding.

Shapes: `W` ranks, `R` rows per rank, `B` = W · R rows of the global batch, `D` embedding dimension.
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

LOST_RANK = "lost another rank"  # part of a rank's error when a peer died
# References to the groups that this process left. Dropping the last reference joins gloo's threads
# while holding the GIL, but a thread that is releasing a tensor may wait for the GIL, which is a
# deadlock (torch 2.11).
_left_groups: list[dist.ProcessGroup | None] = []
T = TypeVar("T")
Number = TypeVar("Number", bound=np.number[Any])


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's rank in the processes that train together. A single process is rank 0 of 1."""

    rank: int = 0  # this process's rank, counted from 0
    world_size: int = 1  # number of ranks
    local_rank: int = 0  # rank on this machine, and index of this rank's GPU
    local_world_size: int = 1  # number of ranks on this machine

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    @property
    def threads(self) -> int:
        """This rank's share of the cores that the process may use, at least 1."""
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        return max(1, cores // self.local_world_size)

    def replicate(self, model: nn.Module) -> nn.Module:
        """Wrap the model for training, so that gradients are averaged over the ranks."""
        if self.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        # A forward pass begins with the first rank's buffers; `Replica` shares them again when the
        # step ends.
        replica: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True)
        return replica

    @torch.no_grad()
    def sum_gradients(self, replicated: Iterable[nn.Parameter]) -> None:
        """Turn the gradients of a replicated model from means over the ranks into sums.

        Scaling the loss instead would make float16 gradients of activations overflow with a large
        number of ranks.
        """
        gradients = [parameter.grad for parameter in replicated if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, self.world_size)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average gradients that all ranks computed, so that all ranks use identical bits despite
        GPU atomics.
        """
        if self.world_size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                continue
            values = parameter.grad
            if values.is_sparse:  # all ranks chose identical rows
                parameter.grad = values.coalesce()
                values = parameter.grad.values()
            dist.all_reduce(values)
            values /= self.world_size

    def run_on_first(self, function: Callable[[], T]) -> T:
        """Run the function only on the first rank; on all ranks, return the result, or raise the
        `DmlError`.
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
        """Gather the rows of all ranks in rank order; ranks may have different numbers of rows."""
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
        """Sum over all ranks, entry by entry."""
        sums = np.array(counts)
        if self.world_size > 1:
            dist.all_reduce(torch.from_numpy(sums))
        return sums

    def gather_object(self, part: T) -> list[T]:
        """Gather the parts of all ranks on the first rank, in rank order; other ranks receive an
        empty list.
        """
        if self.world_size == 1:
            return [part]
        parts: list[Any] = [None] * self.world_size if self.is_first else []
        dist.gather_object(part, parts if self.is_first else None, dst=0)
        return parts


SINGLE_PROCESS = Ranks()


class DelayedMaximum:
    """The maximum of a number over all ranks, returned by the next call, so that the exchange
    overlaps with a step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pending: tuple[Tensor, Any] | None = None

    def __call__(self, number: int) -> int:
        """Send `number`; return the maximum of the numbers sent by the previous call. A single rank
        gets `number`.
        """
        if self._ranks.world_size == 1:
            return number
        previous = 0
        if self._pending is not None:
            value, work = self._pending
            work.wait()
            previous = int(value)
        value = torch.tensor(number)
        self._pending = value, dist.all_reduce(value, dist.ReduceOp.MAX, async_op=True)
        return previous


@contextmanager
def join_ranks(timeout: float) -> Iterator[Ranks]:
    """Join the other ranks for the duration of this context, if torchrun started this process.

    Raise a `DmlError` if a different rank died, or didn't answer within `timeout` seconds.
    """
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield Ranks()
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    # Send CPU tensors (numbers, Python objects) with gloo, even if gradients use NCCL.
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    limit = timedelta(seconds=timeout)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store, *_ = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        # torchrun's store outlives a restart. Use a prefix per attempt, so that ranks don't read a
        # dead rank's address.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"attempt_{attempt}", store),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world_size,
            timeout=limit,
        )
        yield Ranks(rank, world_size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except RuntimeError as error:
        # gloo raises a plain RuntimeError.
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise DmlError(
            f"rank {rank} of {world_size} {LOST_RANK}, which died or was silent for {timeout:g} s "
            "(training.timeout); fix the error of that rank, then resume the run",
            arguments=("resume",),
        ) from error
    finally:
        if dist.is_initialized():
            _left_groups.append(dist.group.WORLD)
            dist.destroy_process_group()
