"""Compare class weights on all ranks with sharded weights: bytes and processor time per rank and
step.

    python benchmarks/training/bench_sharded_classes.py [STEPS]

The loss is a softmax of cosines in float32, with a global batch of 256, 128 dimensions, plain SGD,
gloo on a single machine, and a thread per rank. Bytes are the peak growth of a rank's memory,
including the class weights. Wall time is the slowest rank's, and only meaningful if there is a free
core per rank.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed, nn

from dml_losses import NormSoftmax, SampledClasses, ShardedClasses

BATCH, DIM = 256, 128


class Cost(NamedTuple):
    """Cost on a rank."""

    weights: int  # bytes
    peak: int  # bytes
    cpu: float  # seconds per step
    clock: float  # seconds per step


def rank(
    number: int,
    world_size: int,
    folder: Path,
    classes: int,
    fraction: float,
    sharded: bool,
    steps: int,
) -> None:
    """Train as this rank and save the cost."""
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), world_size)
    distributed.init_process_group("gloo", store=store, rank=number, world_size=world_size)
    before = memory("VmRSS")
    torch.manual_seed(0)
    loss: nn.Module = SampledClasses(NormSoftmax(classes, DIM), fraction)
    if sharded:
        loss = ShardedClasses(loss)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    costs = []
    for step in range(steps + 1):
        generator = torch.Generator().manual_seed(step)
        embeddings = torch.randn(BATCH, DIM, generator=generator).requires_grad_()
        labels = torch.randint(classes, (BATCH,), generator=generator)
        distributed.barrier()
        begun, spent = time.perf_counter(), time.process_time()
        loss(embeddings, labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        costs.append((time.process_time() - spent, time.perf_counter() - begun))
    cpu, clock = (statistics.median(column) for column in zip(*costs[1:], strict=True))
    weights = sum(parameter.numel() * 4 for parameter in loss.parameters())
    cost = Cost(weights, memory("VmHWM") - before, cpu, clock)
    torch.save(tuple(cost), folder / str(number))
    distributed.destroy_process_group()


def memory(field: str) -> int:
    """Return a field of this process's memory in bytes, from the kernel."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def costs(world_size: int, classes: int, fraction: float, sharded: bool, steps: int) -> list[Cost]:
    """Measure the cost per rank on `world_size` ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dml_losses", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world_size, Path(folder), classes, fraction, sharded, steps)
        ranks = [
            context.Process(target=rank, args=(number, *arguments)) for number in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            assert process.exitcode == 0
        return [Cost(*torch.load(Path(folder, str(number)))) for number in range(world_size)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", type=int, nargs="?", default=3)
    arguments = parser.parse_args()
    steps = arguments.steps
    cores = len(os.sched_getaffinity(0))
    machine = platform.processor() or platform.machine()
    print(
        f"{machine}, {cores} cores, torch {torch.__version__}; batch {BATCH}, {DIM} dimensions, "
        f"{steps} steps"
    )
    print(f"{'classes':>9} {'fraction':>8} {'weights':>8} {'ranks':>5} {'weights MiB':>12} "
          f"{'peak MiB':>9} {'CPU s':>7} {'clock s':>8}   of the largest rank")  # fmt: skip
    for classes, fraction in ((100_000, 1.0), (1_000_000, 1.0), (1_000_000, 0.1)):
        for world_size, sharded in ((1, False), (1, True), (2, True), (4, True)):
            every = costs(world_size, classes, fraction, sharded, steps)
            weights, peak, cpu, clock = (max(column) for column in zip(*every, strict=True))
            print(
                f"{classes:>9,} {fraction:>8} {'sharded' if sharded else 'whole':>8} "
                f"{world_size:>5} {weights / 2**20:>12.0f} {peak / 2**20:>9.0f} {cpu:>7.2f} "
                f"{clock:>8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
