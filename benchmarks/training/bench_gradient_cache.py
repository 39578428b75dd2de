"""Compare steps in micro-batches with the plain step: processor time and peak memory.

    python benchmarks/training/bench_gradient_cache.py [--batch 512] [--rounds 5]

The network has three convolutions and a linear layer, for 64 × 64 pixels; the loss is
InstanceCrossEntropy. In every round, all steps run in turn on a single thread, and a ratio is the
median over rounds. To measure peak memory, a new process runs a step; the memory of a process that
only makes the network and the batch is subtracted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from dml_core import backward_in_micro_batches
from dml_losses import InstanceCrossEntropy


class Job:
    """A network and a batch of `batch` images."""

    def __init__(self, batch: int) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1),
                nn.GroupNorm(8, after),
                nn.ReLU(),
            ]
        self.network = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 64)
        )
        self.images, self.labels = torch.randn(batch, 3, 64, 64), torch.arange(batch) // 4
        self.loss = InstanceCrossEntropy()

    def step(self, micro_batch: int | None) -> None:
        """Compute the batch's gradient; if `micro_batch` is None, in a single pass."""
        self.network.zero_grad()
        if micro_batch is None:
            self.loss(self.network(self.images), self.labels).backward()
        else:
            backward_in_micro_batches(
                self.network, self.images, lambda rows: self.loss(rows, self.labels), micro_batch
            )


def measure_times(
    batch: int, rounds: int, sizes: list[int | None]
) -> dict[int | None, list[float]]:
    """Measure the processor seconds by kind of step, in turn; the first round is not counted."""
    job, times = Job(batch), {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size in sizes:
            begun = time.process_time()
            job.step(size)
            if turn:
                times[size].append(time.process_time() - begun)
    return times


def measure_peak(batch: int, size: str) -> float:
    """Measure a new process's peak memory in MiB; if size is "none", steps are not taken."""
    command = [sys.executable, __file__, "--batch", str(batch), "--alone", size]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.alone is not None:
        job = Job(arguments.batch)
        if arguments.alone != "none":
            job.step(int(arguments.alone) or None)
        status = Path("/proc/self/status").read_text(encoding="ascii")
        print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
        return
    sizes = [None, *(size for size in (256, 128, 64, 32) if size < arguments.batch)]
    times = measure_times(arguments.batch, arguments.rounds, sizes)
    idle = measure_peak(arguments.batch, "none")
    print(
        f"torch {torch.__version__}, one thread, batch {arguments.batch}, medians of "
        f"{arguments.rounds}\n"
    )
    print("| micro-batch | s a step | beside the plain step | peak memory of the step, MiB |")
    print("|---|---|---|---|")
    for size in sizes:
        ratio = statistics.median(
            ours / plain for ours, plain in zip(times[size], times[None], strict=True)
        )
        peak = measure_peak(arguments.batch, str(size or 0)) - idle
        print(
            f"| {size or 'plain'} | {statistics.median(times[size]):.2f} | {ratio:.2f} | "
            f"{peak:,.0f} |"
        )


if __name__ == "__main__":
    main()
