"""Run the ranks of a process group as processes on this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed


def run_ranks(target: Callable[..., None], size: int, *arguments: object) -> None:
    """Call `target(rank, *arguments)` in a process per rank and check that all succeed."""
    # Fork from a process that only imported torch, so that a single import can be used by all ranks.
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=target, args=(rank, *arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=600)
    exitcodes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()  # otherwise a rank that waits for a dead rank would delay the end of the tests
    assert exitcodes == [0] * size


@contextmanager
def joined(rank: int, size: int, folder: Path, backend: str = "gloo") -> Iterator[None]:
    """Join the other ranks, which must be given the same folder."""
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / f"store of {size}"), size)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    yield
    distributed.destroy_process_group()
