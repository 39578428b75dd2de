"""Compare a measurement that processes share with a single process: a table of processor time.

    python benchmarks/evaluator/ranks.py [--items 15000 60000] [--ranks 1 2 4]
        [--jobs hard easy birds codes gallery]

A process uses a single thread. Since processor time doesn't count the wait for a core, the longest
time is the duration on a machine with a core per process, and the sum is the cost.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch.distributed as dist
import torch.multiprocessing as mp
from compare import machine
from data import birds_like, codes_of, stanford_like

from dml_eval_rs import Evaluation, evaluate
from dml_eval_rs.metrics.names import DEFAULT
from dml_train.ranks.ranks import Ranks

JOBS = ("hard", "easy", "birds", "codes", "gallery", "nmi")  # the last three use hard data


def measure(job: str, items: int, ranks: Ranks) -> tuple[float, Evaluation]:
    """Do a job; return this process's processor seconds, and the result."""
    x, labels = (
        birds_like(items)
        if job == "birds"
        else stanford_like("easy" if job == "easy" else "hard", items)
    )
    codes = codes_of(x, 512) if job == "codes" else np.empty((0, 1), np.uint8)
    evaluate(
        x[:1000], np.arange(1000) // 2, threads=1, peers=ranks
    )  # the first exchange opens connections
    start = time.process_time()
    if job == "codes":
        result = evaluate(codes, labels, similarity="hamming", threads=1, peers=ranks)
    elif job == "gallery":
        result = evaluate(x[: items // 4], labels[: items // 4], x, labels, threads=1, peers=ranks)
    else:
        metrics = (*DEFAULT, "nmi") if job == "nmi" else DEFAULT
        result = evaluate(x, labels, metrics=metrics, threads=1, peers=ranks)
    return time.process_time() - start, result


def one_rank(rank: int, world_size: int, job: str, items: int, folder: str) -> None:
    ranks = Ranks(rank, world_size)
    if world_size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
        )
    seconds, result = measure(job, items, ranks)
    np.savez(
        f"{folder}/{rank}.npz", seconds=seconds, nmi=result.get("nmi", 0.0), **result.per_query
    )
    if world_size > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, nargs="+", default=[15_000, 60_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS[:5]))
    arguments = parser.parse_args()
    print(machine())
    print(
        f"{'data':>8} {'items':>8} {'ranks':>6} {'longest, s':>11} {'sum, s':>8} "
        f"{'sum / alone':>12}  same bits"
    )
    for items in arguments.items:
        for job in arguments.jobs:
            alone, first = 0.0, {}
            for world_size in arguments.ranks:
                with tempfile.TemporaryDirectory() as folder:
                    mp.spawn(one_rank, (world_size, job, items, folder), world_size)
                    found = [
                        dict(np.load(Path(folder, f"{rank}.npz"))) for rank in range(world_size)
                    ]
                seconds = [float(one.pop("seconds")) for one in found]
                alone, first = alone or sum(seconds), first or found[0]
                same = all(
                    one[name].tobytes() == first[name].tobytes() for one in found for name in first
                )
                print(
                    f"{job:>8} {items:8,} {world_size:6} {max(seconds):11.2f} {sum(seconds):8.2f} "
                    f"{sum(seconds) / alone:12.2f}  {'yes' if same else 'NO'}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
