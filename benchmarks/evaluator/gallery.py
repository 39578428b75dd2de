"""Measure a gallery in a file: processor time per pair, and memory in addition to the queries.

    python benchmarks/evaluator/gallery.py [--items 1000000] [--queries 1000]

The gallery is a single shard. A query excludes itself, and a class has ten items. Float32
embeddings are compared by cosine, codes by Hamming distance.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from dml_eval_rs import evaluate_shards

BLOCK, PER_CLASS = 100_000, 10


def memory(field: str) -> int:
    """Return a field of this process's memory in MiB; the mapped file is RssFile, which the kernel
    may drop.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) // 1024
    raise KeyError(field)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    options = parser.parse_args()
    labels = np.arange(options.items) // PER_CLASS
    print(
        f"{'gallery':>16} {'items':>12} {'queries':>8} {'bytes each':>11} {'CPU s':>8} "
        f"{'ns a pair':>10}  MiB more"
    )
    for name, dtype, width, similarity in (
        ("float32 x 128", np.float32, 128, "cosine"),
        ("512-bit codes", np.uint8, 64, "hamming"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "gallery.npy")
            gallery = np.lib.format.open_memmap(
                path, mode="w+", dtype=dtype, shape=(options.items, width)
            )
            rng = np.random.default_rng(0)
            for start in range(0, options.items, BLOCK):
                rows = gallery[start : start + BLOCK]
                floats = dtype is np.float32
                rows[:] = (
                    rng.normal(size=rows.shape) if floats else rng.integers(0, 256, rows.shape)
                )
            del gallery, rows
            gallery = np.load(path, mmap_mode="r")
            before, begun = memory("RssAnon"), time.process_time()
            asking = np.arange(options.queries)
            evaluate_shards(
                [np.array(gallery[: len(asking)])], labels[: len(asking)], [path], labels,
                block=BLOCK, similarity=similarity, exclude=asking, threads=None,
            )  # fmt: skip
            spent = time.process_time() - begun
            print(
                f"{name:>16} {options.items:>12,} {options.queries:>8,} "
                f"{width * np.dtype(dtype).itemsize:>11} {spent:>8.2f} "
                f"{1e9 * spent / options.items / options.queries:>10.2f} "
                f"{memory('RssAnon') - before:>9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
