"""dml-eval-rs beside faiss and pytorch-metric-learning: runs alternate, and a table shows medians of pairwise ratios.

    python benchmarks/evaluator/compare.py [--work NAME ...] [--pairs 3] [--items 60502]
        [--kernel NAME] [--run runs/demo]

Needs faiss-cpu and, for the row `pml`, pytorch-metric-learning with torch. The rows `trained...` need the folder of a
run, whose embeddings they use. Asserts nothing.

faiss multiplies with its own copy of OpenBLAS, which doesn't know every CPU: the first line names the kernels that it
chose. ``OPENBLAS_CORETYPE=SkylakeX`` makes it use AVX-512, ``OPENBLAS_CORETYPE=Haswell FAISS_SIMD_LEVEL=AVX2`` AVX2.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import faiss
import numpy as np
import threadpoolctl
from data import SEED, birds_like, codes_of, decaying, stanford_like

import dml_eval_rs
import dml_eval_rs._native as _native
from dml_eval_rs.metrics.names import DEFAULT

IDLE = 0.3  # seconds between two runs
CORES = len(os.sched_getaffinity(0))
METRICS = (*DEFAULT, "recall@1000")
Job = Callable[[], object]
Pair = tuple[str, Job, str, Job]


def self_retrieval(kind: str, n: int) -> Pair:
    x, labels = stanford_like(kind, n)
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    return (
        f"self-retrieval, float32 x 512, {kind}",
        lambda: dml_eval_rs.evaluate(x, labels, metrics=METRICS),
        "faiss search k=1001",
        lambda: index.search(x, min(1001, n)),
    )


def self_retrieval_pml(n: int) -> Pair:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    x, labels = stanford_like("hard", n)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_reciprocal_rank"),
        k="max_bin_count",
        device=torch.device("cpu"),
    )
    return (
        "self-retrieval, float32 x 512, hard",
        lambda: dml_eval_rs.evaluate(x, labels, metrics=METRICS),
        "PML k=max_bin_count",
        lambda: calculator.get_accuracy(torch.from_numpy(x), torch.from_numpy(labels)),
    )


def separate_gallery(n: int) -> Pair:
    x, labels = stanford_like("hard", n)
    queries = x[: n // 4].copy()
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    return (
        "separate gallery, a quarter as queries",
        lambda: dml_eval_rs.evaluate(queries, labels[: n // 4], x, labels, metrics=METRICS),
        "faiss search k=1001",
        lambda: index.search(queries, min(1001, n)),
    )


def codes(n: int, k: int) -> Pair:
    x, labels = stanford_like("easy", n)
    packed = codes_of(x, 2048)
    index = faiss.IndexBinaryFlat(2048)
    index.add(packed)
    return (
        "self-retrieval, 2,048-bit codes",
        lambda: dml_eval_rs.evaluate(packed, labels, similarity="hamming", metrics=METRICS),
        f"faiss search k={k}",
        lambda: index.search(packed, min(k, n)),
    )


def kmeans_round(n: int) -> Pair:
    x, _ = stanford_like("hard", n)
    clusters = max(1, round(n * 11_316 / 60_502))
    centres = x[np.random.default_rng(SEED).choice(n, clusters, replace=False)].copy()

    def by_faiss() -> object:
        index = faiss.IndexFlatL2(x.shape[1])
        index.add(centres)
        return index.search(x, 1)

    return (
        f"k-means, one assignment to {clusters:,} centres",
        lambda: dml_eval_rs.knn(x, centres, 1, similarity="euclidean"),
        "faiss IndexFlatL2 k=1",
        by_faiss,
    )


def many_positives(n: int) -> Pair:
    x, labels = birds_like(min(n, 5_924))
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    return (
        f"{len(x):,} x 512, 100 classes",
        lambda: dml_eval_rs.evaluate(x, labels, metrics=METRICS),
        "faiss search k=1001",
        lambda: index.search(x, min(1001, len(x))),
    )


def nearest(n: int) -> Pair:
    x, _ = stanford_like("easy", n)
    queries = x[: n // 8].copy()
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    return (
        "knn k=100, an eighth as queries",
        lambda: dml_eval_rs.knn(queries, x, 100),
        "faiss search k=100",
        lambda: index.search(queries, 100),
    )


def beside_faiss(name: str, x: np.ndarray, labels: np.ndarray, peer: str = "flat") -> Pair:
    index = faiss.IndexFlatIP(x.shape[1]) if peer == "flat" else faiss.IndexFlatIPPanorama(x.shape[1], 8)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    index.add(unit)
    return (
        name,
        lambda: dml_eval_rs.evaluate(x, labels, metrics=METRICS),
        f"faiss {peer} k=1001",
        lambda: index.search(unit, min(1001, len(x))),
    )


def trained(run: Path | None, peer: str = "flat") -> Pair:
    x, labels = embeddings_of(run)
    return beside_faiss(f"trained, {len(x):,} x {x.shape[1]}", x, labels, peer)


def trained_knn(run: Path | None) -> Pair:
    x, _ = embeddings_of(run)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    queries, unit_queries = x[:5000].copy(), unit[:5000].copy()
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(unit)
    return (
        f"trained, knn k=10, 5,000 of {len(x):,} x {x.shape[1]}",
        lambda: dml_eval_rs.knn(queries, x, 10),
        "faiss flat k=10",
        lambda: index.search(unit_queries, 10),
    )


def embeddings_of(run: Path | None) -> tuple[np.ndarray, np.ndarray]:
    if run is None:
        raise SystemExit("the works `trained...` need --run FOLDER, which `dml demo` makes")
    return np.load(run / "embeddings.npy"), np.load(run / "labels.npy")


def spectrum(n: int, exponent: float) -> Pair:
    x, labels = decaying(n, 2048, exponent)
    return beside_faiss(f"float32 x 2,048, variances i^-{exponent:g}", x, labels)


def collapsed() -> Pair:
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((2000, 256), dtype=np.float32)
    near_one, labels = 1 + np.float32(0.01) * x, np.arange(2000) // 5
    return (
        "collapsed, 1 + 0.01 noise, 2,000 x 256",
        lambda: dml_eval_rs.evaluate(near_one, labels, metrics=METRICS),
        "ours, the noise alone",
        lambda: dml_eval_rs.evaluate(x, labels, metrics=METRICS),
    )


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
ISOTROPIC = (
    "hard",
    "easy",
    "pml",
    "separate",
    "codes-1001",
    "codes-12",
    "kmeans",
    "birds",
    "knn",
    "collapsed",
)


def seconds(job: Job, clock: Callable[[], float]) -> float:
    # The threads of OpenMP and OpenBLAS wait for more work in a loop: the next run would share its cores with them.
    time.sleep(IDLE)
    start = clock()
    job()
    return clock() - start


def machine() -> str:
    """Describe the machine and the versions."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return (
        f"{CORES} cores of {model}, load {os.getloadavg()[0]:.1f}; {platform.system()}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, dml-eval-rs {dml_eval_rs.__version__}, "
        f"faiss-cpu {version('faiss-cpu')} ({faiss.SIMDConfig.get_level_name()}, OpenBLAS for {blas_of_faiss()}); "
        f"seed {SEED}"
    )


def blas_of_faiss() -> str:
    """Name the CPU whose kernels faiss's OpenBLAS uses."""
    libraries = threadpoolctl.threadpool_info()
    found = [
        library["architecture"]
        for library in libraries
        if "faiss" in library["filepath"] and "architecture" in library
    ]
    return found[0] if found else "an unknown CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(ISOTROPIC))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--items", type=int, default=60_502)
    parser.add_argument(
        "--one-thread",
        action="store_true",
        help="measure processor time of one thread, for machines that are busy with other work",
    )
    parser.add_argument("--run", type=Path, help="the folder of a run, for the works `trained...`")
    parser.add_argument("--kernel", choices=_native.kernels(), help="switch the faster ones off")
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
        f"{'work':46} {'beside':22} {'ours, s':>9} {'theirs, s':>9} {'times as fast':>14} {'(least, most)':>16}"
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
