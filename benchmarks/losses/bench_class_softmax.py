"""Compare a step of the class softmax with an earlier version: processor time, and peak memory.

    git worktree add /tmp/before COMMIT
    taskset -c 0 python benchmarks/losses/bench_class_softmax.py /tmp/before
        [--threads 1] [--seconds 5]

The versions alternate in a single process, on the same data in float32; the table has the minima. A
step computes ArcFace and both gradients. Memory is the growth of a new process during a step,
without the weights' gradient.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import platform
import sys
import time
from pathlib import Path
from types import ModuleType

import torch

from dml_losses.functional import cosine_softmax as now

KERNEL = "packages/dml-losses/src/dml_losses/functional/cosine_softmax.py"
LARGE = [(1_000_000, 256, 128), (100_000, 1024, 512)]  # classes, batch, dimensions
SMALL = [
    (classes, batch, dim)
    for classes in (100, 1000, 10_000)
    for batch in (128, 512)
    for dim in (128, 512)
]


def load(tree: Path) -> ModuleType:
    """Load an earlier version, and rename its operators, which can't be defined twice."""
    source = (tree / KERNEL).read_text().replace("dml_losses::", "dml_losses_before::")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("before", loader=None))
    sys.modules["before"] = module
    exec(compile(source, str(tree / KERNEL), "exec"), module.__dict__)
    return module


class Step:
    """A step of ArcFace with one of the versions."""

    def __init__(self, classes: int, batch: int, dim: int) -> None:
        torch.manual_seed(0)
        self.x, self.w = (torch.randn(count, dim, requires_grad=True) for count in (batch, classes))
        self.y = torch.randint(classes, (batch,))

    def __call__(self, version: ModuleType) -> float:
        """Return the processor time in seconds."""
        started = time.process_time()
        version.cosine_softmax(self.x, self.y, self.w, 64.0, angular_margin=0.5).backward()
        seconds = time.process_time() - started
        self.x.grad = self.w.grad = None
        return seconds


def memory(field: str) -> float:
    """Return a field of this process's memory in MiB."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def measure_peak(tree: Path | None, threads: int, shape: tuple[int, int, int]) -> float:
    """Return the peak memory of a step in MiB, without the inputs and the weights' gradient."""
    torch.set_num_threads(threads)
    version = now if tree is None else load(tree)
    Step(2000, 16, shape[2])(version)  # make torch allocate its buffers first
    step = Step(*shape)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    step(version)
    return memory("VmHWM") - before - step.w.nbytes / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="processor time per row; at least four rounds"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    machine = platform.processor() or platform.machine()
    print(
        f"{machine}, {arguments.threads} threads, torch {torch.__version__}; processor time of a "
        "step in ms"
    )
    print(
        f"{'classes':>9} {'batch':>6} {'dim':>4} {'before':>9} {'now':>9} {'ratio':>6} "
        f"{'MiB before':>11} {'now':>5}"
    )
    before = load(arguments.before)
    for shape in LARGE + SMALL:
        step, best = Step(*shape), {before: torch.inf, now: torch.inf}
        started, rounds = time.process_time(), 0
        while rounds < 4 or time.process_time() - started < arguments.seconds:
            for version in (before, now) if rounds % 2 else (now, before):
                best[version] = min(best[version], step(version))
            rounds += 1
        peaks = ""
        if shape in LARGE:
            with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                tasks = [(tree, arguments.threads, shape) for tree in (arguments.before, None)]
                peaks = "{:>11.0f} {:>5.0f}".format(*pool.starmap(measure_peak, tasks, chunksize=1))
        classes, batch, dim = shape
        print(f"{classes:>9,} {batch:>6,} {dim:>4} {1e3 * best[before]:>9.2f} "
              f"{1e3 * best[now]:>9.2f} {best[now] / best[before]:>6.2f} {peaks}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
