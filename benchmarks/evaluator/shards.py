"""Compare `evaluate_shards` with a call of `evaluate`, or `verify_shards` with `verify`.

    python benchmarks/evaluator/shards.py [--items 60000] [--rounds 3]
        [--maps processes ray] [--verify]

Both take turns and use an equal number of cores. Processor time includes the tasks, the driver, and
the workers' other threads and idle time, but not the start of the workers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from compare import machine
from data import stanford_like

from dml_eval_rs import evaluate, evaluate_shards, verify, verify_shards

DIM, CORES = 512, 2
IDLE_SECONDS = 10.0


class Timed:
    """A picklable function that returns the worker's id, its processor time before and after, and
    the result.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, task: Any) -> Any:
        start = time.process_time()
        result = self.function(task)
        return os.getpid(), start, time.process_time(), result


def warm(task: Any) -> Any:
    """Import the package, then sleep, so that concurrent tasks run on different workers."""
    evaluate(np.eye(4, dtype=np.float32), np.zeros(4, np.int64), threads=1)
    time.sleep(0.5)
    return task


def idle() -> float:
    """Return this process's processor time per second while it is idle."""
    before = time.process_time()
    time.sleep(IDLE_SECONDS)
    return (time.process_time() - before) / IDLE_SECONDS


class Clock:
    """A map that uses a given map to run tasks; it adds up the workers' processor time."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.first, self.last = inner, {}, {}
        self.tasks: list[tuple[Any, float]] = []

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for worker, start, end, result in self.inner(Timed(function), tasks):
            self.first.setdefault(worker, start)
            self.last[worker] = end
            self.tasks.append((getattr(result, "key", None), end - start))
            yield result

    @property
    def seconds(self) -> float:
        return sum(self.last[worker] - self.first[worker] for worker in self.first)


def overhead(items: int, rounds: int, maps: list[str], verifies: bool) -> None:
    of_one, of_shards = (verify, verify_shards) if verifies else (evaluate, evaluate_shards)
    x, labels = stanford_like("hard", items)
    print(f"{items:,} x {DIM}, {CORES} cores; six .npy shards")
    print(f"{'map':>10} {'round':>6} {'tasks, s':>9} {'driver':>7} {'other':>6} "
          f"{'of one call':>12} "
          f"{'wall, s':>8} {'of one call':>12}  same bits")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{place}.npy") for place in range(6)]
        for path, part in zip(paths, np.array_split(x, 6)):
            np.save(path, part)
        for name in maps:
            with_map = {"processes": on_processes, "ray": on_ray}[name]
            ratios = []
            for inner in with_map():
                for number in range(rounds):
                    wall, processor = time.perf_counter(), time.process_time()
                    whole: Any = of_one(x, labels, threads=CORES)
                    alone = (time.process_time() - processor, time.perf_counter() - wall)
                    clock = Clock(inner)
                    wall, processor = time.perf_counter(), time.process_time()
                    found: Any = of_shards(paths, labels, map=clock)
                    driver = time.process_time() - processor
                    took = (driver + clock.seconds, time.perf_counter() - wall)
                    in_tasks = sum(seconds for _, seconds in clock.tasks)
                    same = found == whole
                    ratios.append([a / b for a, b in zip(took, alone)])
                    print(
                        f"{name:>10} {number + 1:6} {in_tasks:9.2f} {driver:7.2f} "
                        f"{clock.seconds - in_tasks:6.2f} {ratios[-1][0]:12.2f} {took[1]:8.2f} "
                        f"{ratios[-1][1]:12.2f}  {'yes' if same else 'NO'}",
                        flush=True,
                    )
            medians = np.median(ratios, axis=0)
            print(
                f"{name:>10} {'median':>6} {'':24} {medians[0]:12.2f} {'':8} {medians[1]:12.2f}",
                flush=True,
            )


def on_processes() -> Iterator[Any]:
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as executor:
        list(executor.map(warm, range(2 * CORES)))
        yield executor.map


def on_ray() -> Iterator[Any]:
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
    }  # data are not sent or kept
    import ray

    from dml_eval_rs.adapters.ray import ray_map

    ray.init(
        "local",
        num_cpus=CORES,
        include_dashboard=False,
        object_store_memory=300 << 20,
        log_to_driver=False,
    )
    on_cluster = ray_map()
    list(on_cluster(lambda task: warm(task[0]), [(number,) for number in range(2 * CORES)]))
    before = time.process_time()
    workers = list(on_cluster(lambda task: idle(), [(number,) for number in range(CORES)]))
    driver = (time.process_time() - before) / IDLE_SECONDS
    print(
        f"Ray's threads, while nothing runs: {driver:.2%} of a core in the driver, "
        f"{max(workers):.2%} in a worker"
    )
    yield on_cluster
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--maps", nargs="+", choices=["processes", "ray"], default=["processes", "ray"]
    )
    parser.add_argument("--verify", action="store_true", help="verify instead of evaluate")
    arguments = parser.parse_args()
    print(machine())
    overhead(arguments.items, arguments.rounds, arguments.maps, arguments.verify)


if __name__ == "__main__":
    main()
