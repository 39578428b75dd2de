"""Peers that are threads of this process, for tests of work that processes share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


@dataclass
class Table:
    """Where the peers leave what they exchange."""

    barrier: threading.Barrier
    seats: list[Any]


@dataclass
class ThreadPeer:
    """One of the peers, and how often it exchanged something."""

    rank: int
    table: Table
    threads: int = 1
    exchanges: int = field(default=0)

    @property
    def world_size(self) -> int:
        return len(self.table.seats)

    def all_gather(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.concatenate(self._exchange(numbers))

    def all_reduce(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.sum(self._exchange(counts), axis=0, dtype=np.int64)

    def _exchange(self, own: Any) -> list[Any]:
        self.exchanges += 1
        self.table.seats[self.rank] = own
        self.table.barrier.wait(timeout=300)
        everybodys = list(self.table.seats)
        self.table.barrier.wait(timeout=300)
        return everybodys


def together(world_size: int, work: Callable[[ThreadPeer], T]) -> list[T]:
    """What each of so many peers returns; what the first to fail raises."""
    table = Table(threading.Barrier(world_size), [None] * world_size)

    def run(rank: int) -> T:
        try:
            return work(ThreadPeer(rank, table))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(run, rank) for rank in range(world_size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]
