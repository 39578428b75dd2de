"""Measure how self-retrieval's time and memory grow with data and classes; also re-ranking,
clustering, the kernels.

    python benchmarks/evaluator/growth.py [--tables growth classes kernels clusters reranking]
        [--items 7500 15000 30000 60000] [--dim 512]

Times are processor time of a thread, which other work on the machine affects less. Memory is the
peak in addition to the inputs; rows are measured in new processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from compare import machine
from data import birds_like, codes_of, stanford_like

import dml_eval_rs._native as _native
from dml_eval_rs import ami, evaluate, kmeans, nmi, rerank
from dml_eval_rs.inputs import arguments
from dml_eval_rs.matches.relation import Relation
from dml_eval_rs.retrieval import check_options

DIM = 512


def peak() -> int:
    """Return the peak of resident bytes since the last reset; right after a reset, return the
    current number.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def one_size(items: int, dim: int, reranks: bool) -> tuple[float, float]:
    x, labels = stanford_like("easy" if reranks else "hard", items, dim)
    evaluate(x[:1000], np.arange(1000) // 2)
    Path("/proc/self/clear_refs").write_text("5")
    before, start = peak(), time.process_time()
    if reranks:
        queries = items // 50
        rerank(x[:queries], x[queries:], k=10, threads=1)
    else:
        evaluate(x, labels, threads=1)
    return time.process_time() - start, (peak() - before) / 2**20


def growth(sizes: list[int], dim: int, reranks: bool = False) -> None:
    """Measure self-retrieval, or re-ranking with a fiftieth of the items as queries."""
    print(f"{'items':>8} {'processor s':>12} {'ns a pair':>10} {'MiB beyond inputs':>18}")
    for items in sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, mebibytes = pool.apply(one_size, (items, dim, reranks))
        pairs = items * (items - 1) / 2
        print(
            f"{items:8,} {seconds:12.2f} {1e9 * seconds / pairs:10.2f} {mebibytes:18.0f}",
            flush=True,
        )


def classes(items: int) -> None:
    """Measure a given number of items in ever larger classes."""
    pairs = items * (items - 1) / 2
    print(
        f"{'items':>8} {'classes':>8} {'float32 x 512, s':>17} {'ns a pair':>10} "
        f"{'512-bit codes, s':>17} {'ns a pair':>10}"
    )
    for number in (items // 5, 100, 20, 4, 2):
        x, labels = birds_like(items, number)
        codes = codes_of(x, 512)
        start = time.process_time()
        evaluate(x, labels, threads=1)
        middle = time.process_time()
        evaluate(codes, labels, similarity="hamming", threads=1)
        seconds = (middle - start, time.process_time() - middle)
        columns = "".join(f" {each:17.2f} {1e9 * each / pairs:10.1f}" for each in seconds)
        print(f"{items:8,} {number:8,}{columns}", flush=True)


def clusters(items: int) -> None:
    """Measure k-means with a cluster per class and the agreement of clusters and classes."""
    x, labels = stanford_like("easy", items)
    number = int(labels.max()) + 1
    Path("/proc/self/clear_refs").write_text("5")
    before, start = peak(), time.process_time()
    found = kmeans(x, number, threads=1)
    middle = time.process_time()
    mebibytes = (peak() - before) / 2**20
    agreement = (nmi(labels, found.labels), ami(labels, found.labels))
    seconds = (middle - start, time.process_time() - middle)
    heads = (
        f"{'items':>8} {'clusters':>9} {'rounds':>7} {'k-means, s':>11} {'MiB beyond inputs':>18}"
    )
    print(f"{heads} {'NMI and AMI, s':>15}")
    print(
        f"{items:8,} {number:9,} {found.n_iter:7} {seconds[0]:11.1f} {mebibytes:18.0f} "
        f"{seconds[1]:15.2f}"
    )
    print(f"NMI {agreement[0]:.4f}, AMI {agreement[1]:.4f}", flush=True)


def kernels(items: int) -> None:
    x, labels = stanford_like("easy", items)
    relations = [Relation(labels=arguments.encode(labels)[0])]
    codes = codes_of(x, 2048)
    pairs = items * (items - 1) / 2
    print(f"{'kernel':>12} {'screen':>9} {'GFLOP/s a core':>15} {'codes, Gbit/s a core':>21}")
    for kernel in _native.kernels():
        for screen in ("16-bit", "float32"):
            if (kernel, screen) == ("portable", "16-bit") or kernel == "portable-bytes":
                # equal to portable float32
                continue
            _native.begin_trial(kernel=kernel, screen=screen)
            start = time.process_time()
            _native.evaluate(x, None, relations, check_options(metrics="recall@1", threads=1))
            product = time.process_time() - start
            start = time.process_time()
            of_codes = check_options(metrics="recall@1", similarity="hamming", threads=1)
            _native.evaluate(codes, None, relations, of_codes)
            hamming = time.process_time() - start
            _native.end_trial()
            rates = (2 * DIM * pairs / product / 1e9, 2048 * pairs / hamming / 1e9)
            print(f"{kernel:>12} {screen:>9} {rates[0]:15.0f} {rates[1]:21.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tables", nargs="+", choices=TABLES, default=["growth", "classes", "kernels"]
    )
    parser.add_argument("--items", type=int, nargs="+", default=[7_500, 15_000, 30_000, 60_000])
    parser.add_argument("--dim", type=int, default=DIM, help="for growth and reranking")
    parser.add_argument("--kernels-at", type=int, default=20_000)
    parser.add_argument("--classes-at", type=int, default=20_000)
    parser.add_argument("--clusters-at", type=int, default=60_502)
    options = parser.parse_args()
    print(f"{machine()}; processor seconds")
    for table in options.tables:
        print()
        TABLES[table](options)


TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "growth": lambda options: growth(options.items, options.dim),
    "classes": lambda options: classes(options.classes_at),
    "kernels": lambda options: kernels(options.kernels_at),
    "clusters": lambda options: clusters(options.clusters_at),
    "reranking": lambda options: growth(options.items, options.dim, reranks=True),
}


if __name__ == "__main__":
    main()
