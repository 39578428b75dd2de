"""The evaluator in a process: progress, errors, mapped files, and too little memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_eval_rs import evaluate, kmeans, knn

X = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 50, 500)


@pytest.mark.parametrize(
    ("gallery", "options", "least"),
    [
        ((), {}, 500 * 499 // 2),
        ((X, LABELS), {}, 500 * 500),
        ((), {"metrics": "nmi", "n_clusters": 5}, 500 * 499 // 2 + 500 * 5 + 1),
    ],
    ids=["alone", "gallery", "clusters"],
)
def test_progress_ends_at_the_total_and_never_falls(gallery: Any, options: Any, least: int) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(X, LABELS, *gallery, **options, progress=lambda *now: seen.append(now))
    assert seen[-1][0] == seen[-1][1]
    assert seen[-1][0] >= least if options else seen[-1][0] == least
    assert seen == sorted(seen)


def test_an_error_in_the_progress_callback_reaches_the_caller() -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        evaluate(X, LABELS, progress=fail)


def test_the_gil_is_released_during_an_evaluation() -> None:
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    big = np.random.default_rng(0).standard_normal((6000, 256), dtype=np.float32)
    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    evaluate(big, np.arange(6000) // 3, threads=1)
    during = ticks - before
    stop.set()
    thread.join()
    assert during > 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_mapped_files_give_what_arrays_give(tmp_path: Path, dtype: type) -> None:
    x = X.astype(dtype)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert evaluate(mapped, LABELS) == evaluate(x, LABELS)
    assert evaluate(x, LABELS, mapped, LABELS) == evaluate(x, LABELS, x.copy(), LABELS)
    np.testing.assert_array_equal(knn(mapped, mapped, 5)[1], knn(x, x, 5)[1])
    assert kmeans(mapped, 4).inertia == kmeans(x, 4).inertia


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip


MAPPED = """
import resource, sys
import numpy as np
from dml_eval_rs import evaluate
gallery = np.load(sys.argv[1], mmap_mode="r")
rng = np.random.default_rng(0)
queries = rng.standard_normal((64, 384), dtype=np.float32)
labels, gallery_labels = rng.integers(0, 100, 64), rng.integers(0, 100, len(gallery))
# RLIMIT_DATA limits VmData (writable private memory, touched or not), so the limit is set relative
# to it.
with open("/proc/self/status") as f:
    data = [int(line.split()[1]) for line in f if line.startswith("VmData")][0] * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data + gallery.nbytes * 2 // 3,) * 2)
if sys.argv[2] == "copy":
    np.array(gallery)
options = {"metrics": ("recall@1", "map@r", "nmi"), "n_clusters": 1, "threads": 1}
result = evaluate(queries, labels, gallery, gallery_labels, **options)
print(result.n_queries, result["nmi"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_mapped_gallery_is_never_read_whole_into_memory(tmp_path: Path) -> None:
    # The gallery is 307 MB and the limit leaves 205 MB; evaluate itself takes about 110 MB.
    path = tmp_path / "gallery.npy"
    gallery = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(200_000, 384))
    rng = np.random.default_rng(1)
    for start in range(0, 200_000, 20_000):
        gallery[start : start + 20_000] = rng.standard_normal((20_000, 384), dtype=np.float32)
    gallery.flush()
    assert "MemoryError" in run(MAPPED, str(path), "copy").stderr, "the limit has no effect"
    mapped = run(MAPPED, str(path), "map")
    assert mapped.stdout.strip() == "64 0.0", mapped.stderr


def test_inputs_stay_unchanged_and_may_be_read_only() -> None:
    x, labels = X.copy(), LABELS.copy()
    x.setflags(write=False)
    labels.setflags(write=False)
    evaluate(x, labels, metrics=("map@r", "nmi"))
    codes = np.packbits(x > 0, axis=1)
    codes.setflags(write=False)
    evaluate(codes, labels, similarity="hamming", metrics=("map@r", "nmi"))
    assert (x == X).all()
    assert (labels == LABELS).all()


def test_more_neighbours_than_any_memory_holds_are_a_memory_error() -> None:
    many = np.broadcast_to(np.ones((1, 2), np.float32), (2**31, 2))
    with pytest.raises(MemoryError, match="Unable to allocate"):
        knn(many, many, 2**20)
