"""Time exact neighbours: floats, bytes, filters and a mapped file, compared with faiss.

    python benchmarks/evaluator/truth.py memory [-k 100] [--items 1000000] [--dim 128]
        [--queries 2000]
    python benchmarks/evaluator/truth.py mapped [-k 100] [--items 10000000] [--dim 96]
        [--queries 1000]

`memory` searches arrays: times are processor time of one thread, the minimum of two runs, and
ratios are to `knn` of the same float32 rows. `mapped` searches a temporary file, once, by the
command `dml-eval truth` and by faiss in blocks, in separate processes.

faiss is timed as installed, and with BLAS for any number of queries. As installed, faiss 1.15 uses
BLAS only if all queries together have at least 128,000 numbers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from compare import machine

from dml_eval_rs import Labels, knn
from dml_eval_rs.__main__ import main as command
from dml_eval_rs.inputs.files import load_array, save_array

TIMES = 2
BLOCK = 1_000_000  # rows that are drawn, or searched by faiss, at a time
# Ways to run faiss, with the minimum numbers in all queries together to use BLAS.
FAISS = {
    f"faiss {faiss.__version__} as installed": faiss.cvar.distance_compute_blas_threshold,
    f"faiss {faiss.__version__} with BLAS": 20,
}


def seconds(call: Callable[[], Any]) -> float:
    """Time a call, and return the processor time."""
    best = float("inf")
    for _ in range(TIMES):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def flat_index(base: np.ndarray, variant: str) -> faiss.IndexFlatL2:
    """Make faiss's exact index for a thread, used in one of the ways in `FAISS`."""
    faiss.cvar.distance_compute_blas_threshold = FAISS[variant]
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatL2(base.shape[1])
    index.add(np.ascontiguousarray(base))
    return index


def rows(kind: str, n: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Draw isotropic rows, or rows of n / 100 clusters."""
    x = rng.standard_normal((n, dim), dtype=np.float32)
    if kind == "clustered":
        x *= 0.5
        x += rng.standard_normal((n // 100, dim), dtype=np.float32)[rng.integers(0, n // 100, n)]
    return x


def peak_of(call: Callable[[], Any]) -> float:
    """Return the peak of anonymous memory during a call, in MiB; mapped files are not counted."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
            peak[0] = max(peak[0], int(found[1]) if found else 0)

    thread = threading.Thread(target=watch)
    thread.start()
    call()
    ended.set()
    thread.join()
    return peak[0] / 1024


def measure(kind: str, options: argparse.Namespace) -> None:
    """Print the times for one kind of data."""
    rng = np.random.default_rng(0)
    n, k = options.items, options.k
    base = rows(kind, n, options.dim, rng)
    queries = base[rng.permutation(n)[: options.queries]] + 0.1 * rows(
        "isotropic", options.queries, options.dim, rng
    )
    space: Any = {"similarity": "euclidean", "threads": 1}
    ours = seconds(lambda: knn(queries, base, k, **space))
    pairs = n * len(queries)

    def show(work: str, took: float) -> None:
        print(
            f"{kind:<10} {work:<44} {took:8.2f} s {took / pairs * 1e9:7.3f} ns/pair "
            f"{took / ours:7.3f}",
            flush=True,
        )

    show("float32", ours)
    for variant in FAISS:
        index = flat_index(base, variant)
        show(variant, seconds(partial(index.search, queries, k)))
        del index
    scale = 40 if kind == "isotropic" else 30
    byte_base, byte_queries = (
        np.clip(128 + scale * x, 0, 255).astype(np.uint8) for x in (base, queries)
    )
    show("uint8", seconds(lambda: knn(byte_queries, byte_base, k, **space)))
    wide = byte_base.astype(np.float32), byte_queries.astype(np.float32)
    show("the same bytes as float32", seconds(lambda: knn(wide[1], wide[0], k, **space)))
    for share in (0.9, 0.5, 0.1, 0.01, 0.001):
        allowed = rng.random(n) < share
        show(
            f"{share:.1%} allowed for all",
            seconds(lambda a=allowed: knn(queries, base, k, allowed=a, **space)),
        )
    for classes in (10, 100, 1000):
        both = Labels(rng.integers(0, classes, len(queries))), Labels(rng.integers(0, classes, n))
        show(f"{classes} labels", seconds(lambda b=both: knn(queries, base, k, allowed=b, **space)))


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Call a function once; return its processor time and the peak of anonymous memory in MiB."""
    before, start = peak_of(lambda: time.sleep(0.1)), time.process_time()
    peak = peak_of(call)
    return time.process_time() - start, peak - before


def search_by_command(folder: Path, k: int) -> tuple[float, float]:
    words = ["truth", "base.fbin", "queries.fbin", "-k", str(k), "--out", "truth.ibin"]
    words = [str(folder / word) if word.endswith("bin") else word for word in words]
    return timed(lambda: command([*words, "--similarity", "euclidean", "--threads", "1"]))


def search_by_faiss(folder: Path, k: int, variant: str) -> tuple[float, float]:
    base, queries = (load_array(folder / name) for name in ("base.fbin", "queries.fbin"))

    def search() -> None:
        heap = faiss.ResultHeap(len(queries), k)
        for start in range(0, len(base), BLOCK):
            index = flat_index(base[start : start + BLOCK], variant)
            distances, found = index.search(np.ascontiguousarray(queries), k)
            heap.add_result(distances, found + start)
        heap.finalize()
        np.save(folder / "faiss.npy", heap.I)

    return timed(search)


def measure_mapped(kind: str, options: argparse.Namespace) -> None:
    """Write a file, and print the time and memory to search it."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = np.lib.format.open_memmap(
            folder / "base.npy", "w+", np.float32, (options.items, options.dim)
        )
        for start in range(0, len(base), BLOCK):
            base[start : start + BLOCK] = rows(
                kind, min(BLOCK, len(base) - start), options.dim, rng
            )
        chosen = np.sort(rng.integers(0, len(base), options.queries))
        queries = base[chosen] + 0.1 * rows("isotropic", len(chosen), options.dim, rng)
        save_array(folder / "base.fbin", base)
        save_array(folder / "queries.fbin", queries)
        size = base.nbytes / 2**20
        del base
        (folder / "base.npy").unlink()
        print(f"{kind:<10} a file of {size:,.0f} MiB")
        works: dict[str, Callable[[Path, int], Any]] = {"dml-eval truth": search_by_command}
        works |= {variant: partial(search_by_faiss, variant=variant) for variant in FAISS}
        for work, search in works.items():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                took, peak = pool.apply(search, (folder, options.k))
            pairs = options.items * options.queries
            print(
                f"{kind:<10} {work:<44} {took:8.2f} s {took / pairs * 1e9:7.3f} ns/pair "
                f"{peak:6.0f} MiB beyond the file",
                flush=True,
            )
        same = load_array(folder / "truth.ibin") == np.load(folder / "faiss.npy")
        print(f"{kind:<10} {same.mean():.6f} of the neighbours are at the same place", flush=True)


def main() -> None:
    """Read the arguments, and measure both kinds of data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    works = {
        "memory": (measure, {"items": 1_000_000, "dim": 128, "queries": 2_000}),
        "mapped": (measure_mapped, {"items": 10_000_000, "dim": 96, "queries": 1_000}),
    }
    parser.add_argument("work", choices=works)
    for name in ("--items", "--dim", "--queries"):
        parser.add_argument(name, type=int)
    parser.add_argument("-k", type=int, default=100)
    options = parser.parse_args()
    work, defaults = works[options.work]
    for name, value in defaults.items():
        setattr(options, name, getattr(options, name) or value)
    print(machine())
    print(
        f"{options.items:,} x {options.dim}, {options.queries:,} queries, k = {options.k}, one "
        "thread"
    )
    for kind in ("isotropic", "clustered"):
        work(kind, options)


if __name__ == "__main__":
    main()
