"""Ctrl-C must end long calls of all kinds soon."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# These calls would take seconds, or hours if counts are crafted.
CALLS = {
    "evaluate": "evaluate(x, labels, threads=2)",
    "evaluate a gallery": "evaluate(x, labels, -x, labels, threads=2)",
    "evaluate ties": "evaluate(equal, labels % 100, ties='expected', threads=2)",
    "evaluate several rules": "evaluate_ties(equal, labels % 100, threads=2)",
    "evaluate few queries": "evaluate(x[:8], labels[:8] * 0, many, zeros, threads=2)",
    "evaluate codes": (
        "evaluate(codes, zeros % 7 + np.arange(len(zeros)) // 9, similarity='hamming', threads=2)"
    ),
    "knn": "knn(x, x.copy(), 500, threads=2)",
    "knn of codes": "knn(codes, codes.copy(), 100, similarity='hamming', threads=2)",
    "range_search": "range_search(x, None, 0.2, threads=2)",
    "range_search of codes": "range_search(codes, None, 20, similarity='hamming', threads=2)",
    "hard_negatives": "hard_negatives(x, labels, 500, below='easiest', threads=2)",
    "hard_negatives of codes": (
        "hard_negatives(codes, zeros % 7 + np.arange(len(zeros)) // 9, 9, similarity='hamming', "
        "threads=2)"
    ),
    "top_pairs": "top_pairs(x, 1000, threads=2)",
    "knn of allowed items": (
        "knn(x, -x, 50, allowed=(Labels(labels % 3), Labels(labels % 3)), threads=2)"
    ),
    "index_recall": "index_recall(np.tile(np.arange(50), (len(x), 1)), x, x.copy(), 50, threads=2)",
    "verify": "verify(x, labels, threads=2)",
    "verify codes": (
        "verify(codes, zeros % 7 + np.arange(len(zeros)) // 9, similarity='hamming', threads=2)"
    ),
    "verify shards": "verify_shards([x[:30_000], x[30_000:]], labels, threads=2)",
    "verify pairs": "verify(x, labels, pairs=pairs, threads=2)",
    "verify at many rates": "verify(x[:9000, :8], labels[:9000] % 40, metrics=rates, threads=2)",
    "open_set": "open_set(x, labels, x[:40_000].copy(), labels[:40_000], threads=2)",
    "kmeans": "kmeans(x, 9_000, threads=2)",
    "nmi": "_native.nmi(clusters, clusters[::-1].copy(), 'arithmetic')",
    "evaluate shards": "evaluate_shards([x[:30_000], x[30_000:]], labels, threads=2)",
    "knn of shards": "knn_shards([x[:30_000], x[30_000:]], None, 100, threads=2)",
    "metrics of crafted counts": (
        "_native.compute_metrics(Relation(), ties='expected', metrics=['mrr'], **crafted)"
    ),
}

PROGRAM = """
import json, os, signal, sys, threading, time
import numpy as np
from dml_eval_rs import *
import dml_eval_rs._native as _native
from dml_eval_rs.matches.relation import Relation
# If a shell runs the tests in the background, child processes ignore Ctrl-C by default.
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
x = rng.standard_normal((60_000, 256), dtype=np.float32)
labels = rng.integers(0, 10_000, len(x))
equal = np.ones((60_000, 2), np.float32)
many = np.broadcast_to(x[:1], (2_000_000, 256))
zeros = np.zeros(len(many), np.int64)
codes = rng.integers(0, 256, (len(many), 16), dtype=np.uint8)
pairs = rng.integers(0, 30_000, (3_000_000, 2)) + [0, 30_000]
rates = [f"tar@far={rate}" for rate in np.linspace(1e-3, 0.9, 1_000).tolist()]
clusters = rng.integers(0, 2**20, 25_000_000, dtype=np.uint32)
crafted = {"offsets": np.array([0, 1], np.uint64), "keys": np.array([0.5]),
           "indices": np.array([3], np.uint64), "counts": np.array([0, 2**40, 0, 0], np.uint64)}

def interrupt(at, ended):
    while time.process_time() < at and not ended.wait(0.005):
        pass
    sent.append(time.process_time())
    os.kill(os.getpid(), signal.SIGINT)

for name, call in json.loads(sys.argv[1]).items():
    code, sent, ended, late = compile(call, name, "eval"), [], threading.Event(), None
    thread = threading.Thread(target=interrupt, args=(time.process_time() + 0.2, ended))
    try:
        thread.start()
        eval(code)
        ended.set()
        thread.join()
        time.sleep(0.1)
    except KeyboardInterrupt:
        if not ended.is_set():
            late = time.process_time() - sent[0]
    thread.join()
    print(json.dumps([name, late]), flush=True)
"""


@pytest.fixture(scope="module")
def late() -> dict[str, float | None]:
    """Measure the processor time from Ctrl-C to the end of each call; None if the call ended before
    Ctrl-C.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CALLS)],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_stops_a_long_computation_soon(call: str, late: dict[str, float | None]) -> None:
    seconds = late[call]
    assert seconds is not None, "the call ended before the Ctrl-C"
    # A call should end within a second. Processor time of both threads is used, because it ignores
    # other load.
    assert seconds < 2
