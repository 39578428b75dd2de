"""Measurement of shards beside one call, and the plan of ten million items over 64 workers.

    python benchmarks/evaluator/shards.py overhead [--items 60000] [--rounds 3] [--maps processes ray] [--verify]
    python benchmarks/evaluator/shards.py plan [--items 10000000] [--workers 64] [--slice 2]

`overhead` compares processor and wall time with `evaluate`, or `verify`, on as many cores, in turn. Processor time is
that of the tasks, of the driver, and of the workers between tasks and in other threads; their start doesn't count.
`plan` divides the items into the tasks of `evaluate_shards`, counts what each reads and sends, runs the tasks of
`--slice` blocks for real, and computes the others' time from these.
"""

from __future__ import annotations

import argparse
import heapq
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from compare import machine
from data import SEED, stanford_like

from dml_eval_rs import evaluate, evaluate_shards, verify, verify_shards
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.shards.evaluation import divide, positive_tasks
from dml_eval_rs.shards.rows import Shard, Side
from dml_eval_rs.shards.tasks import Call

DIM, CORES = 512, 2
IDLE_SECONDS = 10.0


class Timed:
    """A picklable function that adds the worker's number and its processor time so far to each result."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, task: Any) -> Any:
        start = time.process_time()
        result = self.function(task)
        return os.getpid(), start, time.process_time(), result


def warm(task: Any) -> Any:
    """Import the package; two such tasks at once reach two workers."""
    evaluate(np.eye(4, dtype=np.float32), np.zeros(4, np.int64), threads=1)
    time.sleep(0.5)
    return task


def idle() -> float:
    """Return the processor time of this process a second, while it does nothing."""
    before = time.process_time()
    time.sleep(IDLE_SECONDS)
    return (time.process_time() - before) / IDLE_SECONDS


class Clock:
    """A map that sums up the processor time of the workers of another map."""

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
    print(f"{'map':>10} {'round':>6} {'tasks, s':>9} {'driver':>7} {'other':>6} {'of one call':>12} "
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
                        f"{name:>10} {number + 1:6} {in_tasks:9.2f} {driver:7.2f} {clock.seconds - in_tasks:6.2f} "
                        f"{ratios[-1][0]:12.2f} {took[1]:8.2f} {ratios[-1][1]:12.2f}  {'yes' if same else 'NO'}",
                        flush=True,
                    )
            medians = np.median(ratios, axis=0)
            print(
                f"{name:>10} {'median':>6} {'':24} {medians[0]:12.2f} {'':8} {medians[1]:12.2f}", flush=True
            )


def on_processes() -> Iterator[Any]:
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as executor:
        list(executor.map(warm, range(2 * CORES)))
        yield executor.map


def on_ray() -> Iterator[Any]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}  # nothing is sent or kept
    import ray

    from dml_eval_rs.adapters.ray import ray_map

    ray.init(
        "local", num_cpus=CORES, include_dashboard=False, object_store_memory=300 << 20, log_to_driver=False
    )
    on_cluster = ray_map()
    list(on_cluster(lambda task: warm(task[0]), [(number,) for number in range(2 * CORES)]))
    before = time.process_time()
    workers = list(on_cluster(lambda task: idle(), [(number,) for number in range(CORES)]))
    driver = (time.process_time() - before) / IDLE_SECONDS
    print(
        f"Ray's threads, while nothing runs: {driver:.2%} of a core in the driver, {max(workers):.2%} in a worker"
    )
    yield on_cluster
    ray.shutdown()


def size_of(entry: Any) -> int:
    """Return the bytes of all arrays in a task's entry."""
    if isinstance(entry, np.ndarray):
        return entry.nbytes
    if is_dataclass(entry):
        return sum(size_of(getattr(entry, field.name)) for field in fields(entry))
    return sum(map(size_of, entry)) if isinstance(entry, (tuple, list)) else 0


def classes_of(items: int) -> npt.NDArray[np.uint32]:
    """Draw labels as those of `stanford_like`, without its rows."""
    rng = np.random.default_rng(SEED)
    sizes = np.clip(rng.poisson(3.35, round(items / 5.3)) + 2, 2, 16)
    labels = np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)[:items]
    labels = np.concatenate([labels, np.arange(items - len(labels), dtype=np.uint32)])
    rng.shuffle(labels)
    return labels


def run_slice(rows: int, blocks: int) -> dict[str, float]:
    """Run the tasks of so many blocks for real; return processor seconds a row and a pair."""
    x, labels = stanford_like("hard", rows * blocks)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{place}.npy") for place in range(blocks)]
        for path, part in zip(paths, np.array_split(x, blocks)):
            np.save(path, part)
        del x
        clock = Clock(lambda function, tasks: map(function, tasks))
        result = evaluate_shards(paths, labels, map=clock, block=rows)
    print(
        f"\nThe tasks of {blocks} blocks of {rows:,} rows, for real (Recall@1 {result['recall@1']:.3f}), one thread:"
    )
    print(f"{'task':>22} {'processor, s':>13} {'ns a pair':>10}")
    seconds: dict[str, list[float]] = {"positives": [], "diagonal": [], "pair": []}
    for (kind, i, j), took in clock.tasks:
        if kind == "describe":
            continue
        pairs = rows * (rows - 1) / 2 if i == j else rows * rows
        name = "positives" if kind == "positives" else "diagonal" if i == j else "pair"
        seconds[name].append(took / (rows if kind == "positives" else pairs))
        rate = "" if kind == "positives" else f"{1e9 * took / pairs:10.2f}"
        print(f"{kind + f' {i} {j}':>22} {took:13.1f} {rate}", flush=True)
    return {name: float(np.mean(values)) for name, values in seconds.items()}


def plan(items: int, workers: int, blocks: int, slice_rows: int | None) -> None:
    labels = classes_of(items)
    edges = np.linspace(0, items, workers + 1).astype(int)
    shards = [
        Shard(
            f"{place}.npy",
            f"{place}.npy",
            "cosine",
            (int(high - low), DIM),
            "float32",
            range(int(high - low)),
        )
        for place, (low, high) in enumerate(pairwise(edges))
    ]
    side = Side(shards, None)
    call = Call(side, side, {}, map, None, Relation(labels=labels), symmetric=True)
    blocks_of = f"{len(side.blocks)} blocks of {len(side.blocks[0]):,} rows"
    print(f"{items:,} x {DIM} against itself: {blocks_of}, {workers} workers")
    rates = run_slice(slice_rows or len(side.blocks[0]), blocks)

    positives = []  # (rows read, bytes sent, bytes returned) of each task
    for task in positive_tasks(call):
        read = len(task[1]) + (0 if task[2] is None else len(task[2]))
        positives.append((read, sum(map(size_of, task[1:])), 0))
    matches = np.bincount(labels)[labels] - 1
    of_block = [int(matches[block.rows.start : block.rows.stop].sum()) for block in side.blocks]
    # Labels, offsets, keys, indices, counts so far; the new counts come back in 4 bytes each.
    sent = [12 * len(block) + 8 + 16 * p + 8 * (p + len(block)) for block, p in zip(side.blocks, of_block)]
    back = [4 * (p + len(block)) + 8 * len(block) for block, p in zip(side.blocks, of_block)]
    waves: list[list[tuple[float, int, int, int]]] = [[], [], []]  # (seconds, read, sent, returned)
    total_matches = sum(of_block)
    for read, out, _ in positives:
        share = 16 * total_matches // len(positives) + 12 * read  # keys and indices; sizes and digests
        waves[0].append((read * rates["positives"], 4 * DIM * read, out, share))
    for wave, tiles in zip(waves[1:], divide(call)):
        for i, j in tiles:
            both = {i, j}
            seconds = call.count_pairs([(i, j)]) * rates["diagonal" if i == j else "pair"]
            read = sum(4 * DIM * len(side.blocks[block]) for block in both)
            wave.append(
                (seconds, read, sum(sent[block] for block in both), sum(back[block] for block in both))
            )
    print(f"\nAll tasks, counted; seconds computed from those of the slice. {total_matches:,} matches: "
          f"{24 * total_matches / 1e9:.1f} GB in the driver")  # fmt: skip
    print(f"{'tasks':>12} {'number':>7} {'read, GB':>9} {'sent, GB':>9} {'back, GB':>9} {'core-hours':>11} "
          f"{'longest task, s':>16} {'longest worker, h':>18} {'of the mean':>12}")  # fmt: skip
    loads = np.zeros((workers, 3))
    for name, wave in zip(("positives", "diagonal", "pairs"), waves):
        before = loads[:, 0].copy()
        queue = [(0.0, worker) for worker in range(workers)]
        for seconds, read, out, returned in wave:  # each to the worker that is free first
            busy, worker = heapq.heappop(queue)
            heapq.heappush(queue, (busy + seconds, worker))
            loads[worker] += (seconds, read, out + returned)
        of_wave = loads[:, 0] - before
        total = np.sum(np.array(wave), axis=0)
        print(f"{name:>12} {len(wave):7,} {total[1] / 1e9:9.0f} {total[2] / 1e9:9.1f} {total[3] / 1e9:9.1f} "
              f"{total[0] / 3600:11.1f} {max(wave)[0]:16.1f} {of_wave.max() / 3600:18.2f} "
              f"{of_wave.max() / of_wave.mean():12.2f}", flush=True)  # fmt: skip
    mean, most = loads.mean(axis=0), loads.max(axis=0)
    print(f"a worker reads {mean[1] / 1e9:.1f} GB (at most {most[1] / 1e9:.1f}), and exchanges {mean[2] / 1e9:.2f} GB "
          f"with the driver (at most {most[2] / 1e9:.2f}) if every task is sent whole")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["overhead", "plan"])
    parser.add_argument("--items", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--maps", nargs="+", choices=["processes", "ray"], default=["processes", "ray"])
    parser.add_argument("--verify", action="store_true", help="verify instead of evaluate")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--slice", type=int, default=2, help="blocks whose tasks run for real")
    parser.add_argument("--slice-rows", type=int, help="rows of these blocks, if fewer than the plan's")
    arguments = parser.parse_args()
    print(machine())
    if arguments.what == "overhead":
        overhead(arguments.items or 60_000, arguments.rounds, arguments.maps, arguments.verify)
    else:
        plan(arguments.items or 10_000_000, arguments.workers, arguments.slice, arguments.slice_rows)


if __name__ == "__main__":
    main()
