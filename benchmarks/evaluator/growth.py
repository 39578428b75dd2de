"""Time and memory of a self-retrieval as the data grow, and the kernels' share of the machine: two tables.

    python benchmarks/evaluator/growth.py [--items 7500 15000 30000 60000] [--kernels-at 10000]

Processor time, so that other work on the machine counts less. Memory is the peak beyond the inputs, of a process for
each row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path

import numpy as np
from compare import machine
from data import codes_of, stanford_like

from dml_eval_rs import _native, arguments, evaluate

DIM = 512


def resident() -> int:
    """Bytes that are resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak() -> int:
    """The most bytes that were resident since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def one_size(items: int) -> tuple[float, float]:
    x, labels = stanford_like("hard", items)
    evaluate(x[:1000], np.arange(1000) // 2)
    Path("/proc/self/clear_refs").write_text("5")
    before, start = resident(), time.process_time()
    evaluate(x, labels)
    return time.process_time() - start, (peak() - before) / 2**20


def growth(sizes: list[int]) -> None:
    print(f"{'items':>8} {'processor s':>12} {'ns a pair':>10} {'MiB beyond inputs':>18}")
    for items in sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, mebibytes = pool.apply(one_size, (items,))
        pairs = items * (items - 1) / 2
        print(f"{items:8,} {seconds:12.2f} {1e9 * seconds / pairs:10.2f} {mebibytes:18.0f}", flush=True)


def kernels(items: int) -> None:
    x, labels = stanford_like("easy", items)
    (code,) = arguments.encode(labels)
    codes = codes_of(x, 2048)
    pairs = items * (items - 1) / 2
    print(f"{'kernel':>12} {'screen':>9} {'GFLOP/s a core':>15} {'codes, Gbit/s a core':>21}")
    for kernel in _native.kernels():
        for screen in ("bfloat16", "float32"):
            if (screen == "bfloat16") != kernel.endswith("bf16"):
                continue
            start = time.process_time()
            _native.evaluate(
                x,
                code,
                None,
                None,
                similarity="cosine",
                recall_at=[1],
                ties="index",
                threads=1,
                kernel=kernel,
                screen=screen,
            )
            product = time.process_time() - start
            start = time.process_time()
            _native.evaluate_codes(
                codes, code, None, None, recall_at=[1], ties="index", threads=1, kernel=kernel
            )
            hamming = time.process_time() - start
            rates = (2 * DIM * pairs / product / 1e9, 2048 * pairs / hamming / 1e9)
            print(f"{kernel:>12} {screen:>9} {rates[0]:15.0f} {rates[1]:21.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[7_500, 15_000, 30_000, 60_000])
    parser.add_argument("--kernels-at", type=int, default=10_000)
    options = parser.parse_args()
    print(machine())
    growth(options.items)
    print()
    kernels(options.kernels_at)


if __name__ == "__main__":
    main()
