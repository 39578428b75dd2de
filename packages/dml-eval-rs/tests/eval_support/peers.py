"""Peers that are threads of this process, to test shared work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


@dataclass
class Exchange:
    """A slot per peer for the value, and a barrier used to wait for all peers."""

    barrier: threading.Barrier
    slots: list[Any]


@dataclass
class ThreadPeer:
    """A peer that can be passed to `evaluate`."""

    rank: int
    exchange: Exchange

    @property
    def world_size(self) -> int:
        return len(self.exchange.slots)

    def all_gather(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.concatenate(self._swap(numbers))

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.sum(self._swap(counts), axis=0, dtype=np.int64)

    def _swap(self, own: Any) -> list[Any]:
        self.exchange.slots[self.rank] = own
        self.exchange.barrier.wait(timeout=300)
        values = list(self.exchange.slots)
        self.exchange.barrier.wait(timeout=300)
        return values


def run_together(world_size: int, work: Callable[[ThreadPeer], T]) -> list[T]:
    """Run `work` for all `world_size` peers and return all results, or raise the first error."""
    exchange = Exchange(threading.Barrier(world_size), [None] * world_size)

    def run(rank: int) -> T:
        try:
            return work(ThreadPeer(rank, exchange))
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(run, rank) for rank in range(world_size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]
