"""Time exact neighbours: floats, bytes, filters and a mapped file, compared with faiss.

    python benchmarks/evaluator/truth.py [--items 1000000] [--dim 128] [--queries 2000]
        [-k 100] [--without-faiss]

Times are processor time of one thread, the minimum of two runs; ratios are to `knn` of the same
float32 rows.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from compare import machine

from dml_eval_rs import Labels, knn
from dml_eval_rs.__main__ import main as command
from dml_eval_rs.inputs.files import save_array

TIMES = 2


def seconds(call: Callable[[], Any]) -> float:
    """Time a call, and return the processor time."""
    best = float("inf")
    for _ in range(TIMES):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


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
    if not options.without_faiss:
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatL2(options.dim)
        index.add(base)
        show(f"faiss {faiss.__version__} IndexFlatL2", seconds(lambda: index.search(queries, k)))
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
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("base.fbin", "queries.fbin", "truth.ibin")]
        save_array(Path(paths[0]), base)
        save_array(Path(paths[1]), queries)
        size = base.nbytes / 2**20
        words = [
            "truth",
            *paths[:2],
            "-k",
            str(k),
            "--out",
            paths[2],
            "--similarity",
            "euclidean",
            "--threads",
            "1",
        ]
        before = peak_of(lambda: time.sleep(0.1))
        start = time.process_time()
        peak = peak_of(lambda: command(words))
        show("dml-eval truth, by default 384 MiB", time.process_time() - start)
        print(
            f"{kind:<10} memory beyond the mapped {size:.0f} MiB: {peak - before:.0f} MiB",
            flush=True,
        )


def main() -> None:
    """Read the arguments, and measure both kinds of data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--without-faiss", action="store_true")
    options = parser.parse_args()
    print(machine())
    print(
        f"{options.items:,} x {options.dim}, {options.queries:,} queries, k = {options.k}, one "
        "thread"
    )
    for kind in ("isotropic", "clustered"):
        measure(kind, options)


if __name__ == "__main__":
    main()
