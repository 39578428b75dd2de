"""Compare dml-eval-rs with faiss and pytorch-metric-learning: runs alternate, a table shows medians
of pairwise ratios.

    python benchmarks/evaluator/compare.py [--work NAME ...] [--pairs 3] [--items 60502]
        [--kernel NAME] [--run runs/demo]

The benchmark needs faiss-cpu; the row `pml` also needs pytorch-metric-learning and torch. The rows
`trained...` use the embeddings in a run's folder. The benchmark does not assert results.

faiss contains a copy of OpenBLAS that doesn't know all CPUs: the first line names the kernels in
use. To use AVX-512, set ``OPENBLAS_CORETYPE=SkylakeX``; to use AVX2, set
``OPENBLAS_CORETYPE=Haswell FAISS_SIMD_LEVEL=AVX2``.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import threadpoolctl
from data import SEED, birds_like, codes_of, decaying, stanford_like

import dml_eval_rs
import dml_eval_rs._native as _native
from dml_eval_rs.metrics.names import DEFAULT

IDLE = 0.3  # seconds between runs
CORES = len(os.sched_getaffinity(0))
METRICS = (*DEFAULT, "recall@1000")
Job = Callable[[], object]
Pair = tuple[str, Job, str, Job]


def search(x: np.ndarray, queries: np.ndarray, k: int, index: faiss.Index | None = None) -> Job:
    """Return faiss's search for the k nearest rows by inner product, or by another index."""
    chosen = faiss.IndexFlatIP(x.shape[1]) if index is None else index
    chosen.add(x)
    return lambda: chosen.search(queries, min(k, len(x)))


def evaluation(*arrays: np.ndarray, **options: Any) -> Job:
    """Return our evaluation of these arrays."""
    return lambda: dml_eval_rs.evaluate(*arrays, metrics=METRICS, **options)


def self_retrieval(kind: str, n: int) -> Pair:
    x, labels = stanford_like(kind, n)
    name = f"self-retrieval, float32 x 512, {kind}"
    return name, evaluation(x, labels), "faiss search k=1001", search(x, x, 1001)


def self_retrieval_pml(n: int) -> Pair:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    x, labels = stanford_like("hard", n)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_reciprocal_rank")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))

    def by_pml() -> object:
        return calculator.get_accuracy(torch.from_numpy(x), torch.from_numpy(labels))

    return (
        "self-retrieval, float32 x 512, hard",
        evaluation(x, labels),
        "PML k=max_bin_count",
        by_pml,
    )


def separate_gallery(n: int) -> Pair:
    x, labels = stanford_like("hard", n)
    queries = x[: n // 4].copy()
    ours = evaluation(queries, labels[: n // 4], x, labels)
    return (
        "separate gallery, a quarter as queries",
        ours,
        "faiss search k=1001",
        search(x, queries, 1001),
    )


def codes(n: int, k: int) -> Pair:
    x, labels = stanford_like("easy", n)
    packed = codes_of(x, 2048)
    theirs = search(packed, packed, k, faiss.IndexBinaryFlat(2048))
    ours = evaluation(packed, labels, similarity="hamming")
    return "self-retrieval, 2,048-bit codes", ours, f"faiss search k={k}", theirs


def kmeans_round(n: int) -> Pair:
    x, _ = stanford_like("hard", n)
    clusters = max(1, round(n * 11_316 / 60_502))
    centres = x[np.random.default_rng(SEED).choice(n, clusters, replace=False)].copy()
    return (
        f"k-means, one assignment to {clusters:,} centres",
        lambda: dml_eval_rs.knn(x, centres, 1, similarity="euclidean"),
        "faiss IndexFlatL2 k=1",
        lambda: search(centres, x, 1, faiss.IndexFlatL2(x.shape[1]))(),
    )


def many_positives(n: int) -> Pair:
    x, labels = birds_like(min(n, 5_924))
    name = f"{len(x):,} x 512, 100 classes"
    return name, evaluation(x, labels), "faiss search k=1001", search(x, x, 1001)


def nearest(n: int) -> Pair:
    x, _ = stanford_like("easy", n)
    queries = x[: n // 8].copy()
    name = "knn k=100, an eighth as queries"
    return (
        name,
        lambda: dml_eval_rs.knn(queries, x, 100),
        "faiss search k=100",
        search(x, queries, 100),
    )


def beside_faiss(name: str, x: np.ndarray, labels: np.ndarray, peer: str = "flat") -> Pair:
    index = None if peer == "flat" else faiss.IndexFlatIPPanorama(x.shape[1], 8)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return name, evaluation(x, labels), f"faiss {peer} k=1001", search(unit, unit, 1001, index)


def trained(run: Path | None, peer: str = "flat") -> Pair:
    x, labels = embeddings_of(run)
    return beside_faiss(f"trained, {len(x):,} x {x.shape[1]}", x, labels, peer)


def trained_knn(run: Path | None) -> Pair:
    x, _ = embeddings_of(run)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    queries, unit_queries = x[:5000].copy(), unit[:5000].copy()
    name = f"trained, knn k=10, 5,000 of {len(x):,} x {x.shape[1]}"
    return (
        name,
        lambda: dml_eval_rs.knn(queries, x, 10),
        "faiss flat k=10",
        search(unit, unit_queries, 10),
    )


def embeddings_of(run: Path | None) -> tuple[np.ndarray, np.ndarray]:
    if run is None:
        raise SystemExit("`trained...` needs --run FOLDER, the folder that `dml demo` makes")
    return np.load(run / "embeddings.npy"), np.load(run / "labels.npy")


def spectrum(n: int, exponent: float) -> Pair:
    x, labels = decaying(n, 2048, exponent)
    return beside_faiss(f"float32 x 2,048, variances i^-{exponent:g}", x, labels)


def collapsed() -> Pair:
    rng = np.random.default_rng(SEED)
    x, labels = rng.standard_normal((2000, 256), dtype=np.float32), np.arange(2000) // 5
    ours, theirs = evaluation(1 + np.float32(0.01) * x, labels), evaluation(x, labels)
    return "collapsed, 1 + 0.01 noise, 2,000 x 256", ours, "ours, the noise alone", theirs


RUN: Path | None = None
WORKS: dict[str, Callable[[int], Pair]] = {
    "hard": lambda n: self_retrieval("hard", n),
    "easy": lambda n: self_retrieval("easy", n),
    "pml": self_retrieval_pml,
    "separate": separate_gallery,
    "codes-1001": lambda n: codes(n, 1001),
    "codes-12": lambda n: codes(n, 12),
    "kmeans": kmeans_round,
    "birds": many_positives,
    "knn": nearest,
    "trained": lambda n: trained(RUN),
    "trained-panorama": lambda n: trained(RUN, "Panorama"),
    "trained-knn": lambda n: trained_knn(RUN),
    "spectrum-1": lambda n: spectrum(n, 1.0),
    "spectrum-1.5": lambda n: spectrum(n, 1.5),
    "spectrum-2": lambda n: spectrum(n, 2.0),
    "collapsed": lambda n: collapsed(),
}
ISOTROPIC = [work for work in WORKS if not work.startswith(("trained", "spectrum"))]


def seconds(job: Job, clock: Callable[[], float]) -> float:
    # Threads of OpenMP and OpenBLAS wait for more work in a loop, and would take cores from the
    # next run.
    time.sleep(IDLE)
    start = clock()
    job()
    return clock() - start


def machine() -> str:
    """Describe the machine and the versions."""
    cpu_info = Path("/proc/cpuinfo")
    models = re.findall(
        "^model name.*: (.*)", cpu_info.read_text() if cpu_info.exists() else "", re.MULTILINE
    )
    model = next(iter(models), platform.machine())
    return (
        f"{CORES} cores of {model}, load {os.getloadavg()[0]:.1f}; {platform.system()}, Python "
        f"{platform.python_version()}, numpy {np.__version__}, dml-eval-rs "
        f"{dml_eval_rs.__version__}, faiss-cpu {version('faiss-cpu')} "
        f"({faiss.SIMDConfig.get_level_name()}, OpenBLAS for {blas_of_faiss()}); seed {SEED}"
    )


def blas_of_faiss() -> str:
    """Name the CPU that faiss's OpenBLAS selects kernels for."""
    libraries = (
        library for library in threadpoolctl.threadpool_info() if "faiss" in library["filepath"]
    )
    return next(
        (found["architecture"] for found in libraries if "architecture" in found), "an unknown CPU"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", choices=WORKS, default=ISOTROPIC)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--items", type=int, default=60_502)
    one_thread = (
        "measure the processor time of one thread; use this if the machine is busy with other work"
    )
    parser.add_argument("--one-thread", action="store_true", help=one_thread)
    parser.add_argument("--run", type=Path, help="the run's folder that `trained...` uses")
    parser.add_argument("--kernel", choices=_native.kernels(), help="disable faster kernels")
    options = parser.parse_args()
    global RUN
    RUN = options.run
    if options.kernel is not None:
        _native.begin_trial(kernel=options.kernel)
    clock = time.process_time if options.one_thread else time.perf_counter
    if options.one_thread:
        faiss.omp_set_num_threads(1)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    else:
        faiss.omp_set_num_threads(CORES)
    unit = "processor seconds of one thread" if options.one_thread else f"seconds on {CORES} cores"
    print(
        f"{machine()}; {options.items:,} items, {options.pairs} pairs, {unit}, "
        f"kernel {options.kernel or _native.kernels()[0]}"
    )
    print(
        f"{'work':46} {'beside':22} {'ours, s':>9} {'theirs, s':>9} {'times as fast':>14} "
        f"{'(least, most)':>16}"
    )
    for work in options.work:
        name, ours, beside, theirs = WORKS[work](options.items)
        pairs = [(seconds(ours, clock), seconds(theirs, clock)) for _ in range(options.pairs)]
        ratios = sorted(b / a for a, b in pairs)
        print(
            f"{name:46} {beside:22} {statistics.median(a for a, _ in pairs):9.3f} "
            f"{statistics.median(b for _, b in pairs):9.3f} {statistics.median(ratios):14.2f} "
            f"{f'({ratios[0]:.2f}, {ratios[-1]:.2f})':>16}",
            flush=True,
        )


if __name__ == "__main__":
    main()
