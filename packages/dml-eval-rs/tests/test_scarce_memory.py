"""If there is too little memory, functions raise MemoryError or return correct results, but never
crash.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

# This program forks per call and limit. A limit is the address space that the call can add.
STARVED = """
import hashlib, os, pickle, resource, sys, traceback
import numpy as np
from dml_eval_rs import *

rng = np.random.default_rng(0)
x, y = (rng.standard_normal((rows, 48), dtype=np.float32) for rows in (2500, 2000))
labels, other_labels = rng.integers(0, 400, len(x)), rng.integers(0, 400, len(y))
codes = np.packbits(rng.integers(0, 2, (2500, 256), dtype=np.uint8), axis=1)
each = np.sort(rng.integers(0, 25, (len(x), 100)) + 25 * np.arange(100), axis=1)
ignored = np.arange(0, each.size + 1, 100), each.ravel()


exec(sys.argv[3])


def run(call, added):
    if added is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + added, resource.RLIM_INFINITY))
    try:
        found = eval(call)
    except (MemoryError, RuntimeError) as error:
        # torch raises a RuntimeError for its tensors.
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        found = None
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if found is not None:
        return hashlib.sha256(pickle.dumps(found)).digest()
    evaluate(x[:100], labels[:100] // 1000, threads=1)  # the process continues
    return b"MemoryError"


# Fork, so that calls can't use memory left by other calls.
def fork(call, added):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, run(call, added))
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    found = os.read(reading, 100)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found or f"exit code {code}"


with open("/proc/self/status") as status:
    size = next(int(line.split()[1]) for line in status if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
outcomes = {}
for call in eval(sys.argv[1]):
    names = {fork(call, None): "right", b"MemoryError": "MemoryError"}
    outcomes[call] = [names.get(found := fork(call, added), found) for added in eval(sys.argv[2])]
print(outcomes)
"""

CALLS = [
    "verify(x, labels, threads=1)",
    "verify(x[:800], labels[:800], y, other_labels, threads=2)",
    "range_search(x, y, 0.2, threads=1)",
    "knn(x, y, 100, threads=1)",
    "hard_negatives(x, labels, 20, threads=2)",
    "knn(codes, codes, 50, similarity='hamming', threads=1)",
    "evaluate(x, labels, threads=1)",
    "evaluate(x, labels, y, other_labels, threads=1)",
    "evaluate(x, labels // 50, ties='expected', threads=1)",
    "evaluate(x, Labels(labels, ignored=ignored), threads=2)",
    "evaluate_shards([x[:900], x[900:]], labels, block=700, threads=1)",
    "knn_shards([x[:900], x[900:]], None, 20, block=700, threads=1)",
    "verify_shards([x[:400], x[400:800]], labels[:800], [y], other_labels, block=300, threads=1)",
    "range_search(codes, None, 90, similarity='hamming', threads=1)",
]
# Limits on the bytes that a call can add. The least can't hold the threads' stacks; the largest
# suffices.
LIMITS = [2**step for step in (20, 22, 23, 24, 25, 26, 27, 29)]


ADAPTERS = """
import torch
from dml_eval_rs.adapters.pytorch_metric_learning import AccuracyCalculator
from dml_eval_rs.adapters.torchmetrics import RetrievalMetric

tensors = torch.from_numpy(x), torch.from_numpy(labels)
calculator = AccuracyCalculator(include=("precision_at_1", "mean_average_precision"))
metric = RetrievalMetric({"threads": 1})
for _ in range(6):
    metric.update(*tensors)
"""
# Return numbers, because a pickled tensor contains an address.
ADAPTER_CALLS = [
    "calculator.get_accuracy(*tensors)",
    "{name: value.item() for name, value in metric.compute().items()}",
]

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def assert_right_or_memory_errors(calls: list[str], setup: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARVED, repr(calls), repr(LIMITS), setup],
        capture_output=True, text=True, timeout=300, check=False,
        # libgomp ends the process if it can't start a thread, so torch must not start any.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = ast.literal_eval(done.stdout.splitlines()[-1])
    wrong = {
        call: found for call, found in outcomes.items() if set(found) != {"right", "MemoryError"}
    }
    assert not wrong, f"{wrong}\n{done.stderr}"


@linux
def test_scarce_memory_is_a_memory_error_or_enough() -> None:
    assert_right_or_memory_errors(CALLS, "")


@pytest.mark.slow
@linux
def test_scarce_memory_in_adapters_is_a_memory_error_or_enough() -> None:
    for package in ("pytorch_metric_learning", "torchmetrics"):
        pytest.importorskip(package)
    assert_right_or_memory_errors(ADAPTER_CALLS, ADAPTERS)
