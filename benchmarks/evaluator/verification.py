"""Compare `verify` with `evaluate` on given data: processor time of a thread, and memory in
addition to the inputs.

    python benchmarks/evaluator/verification.py [--items 60502] [--kind hard]
        [--metrics tar tar+eer auc] [--pairs 1]

`tar` means TAR for four FARs; `+interval` also computes the confidence interval of the first
metric. A measurement runs in a new process; the measurements in a pair run back to back. The
benchmark does not assert results.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from compare import machine
from data import stanford_like
from growth import peak

from dml_eval_rs import evaluate, verify

RATES = [f"tar@far=1e-{i}" for i in (1, 2, 3, 4)]


def measure(folder: Path, work: str) -> None:
    """Do the work; print processor seconds, and MiB in addition to the inputs."""
    x, labels = np.load(folder / "x.npy"), np.load(folder / "labels.npy")
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    start = time.process_time()
    if work == "evaluate":
        evaluate(x, labels, threads=1)
    else:
        asked = [name for name in work.split("+") if name != "interval"]
        names = [each for name in asked for each in (RATES if name == "tar" else [name])]
        found = verify(x, labels, metrics=names, threads=1)
        if "interval" in work:
            found.confidence_interval(names[0])
    seconds = time.process_time() - start
    print(seconds, (peak() - before) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=60_502)
    parser.add_argument("--kind", choices=("hard", "easy"), default="hard")
    parser.add_argument(
        "--metrics", nargs="+", default=["tar", "tar+eer", "auc", "tar+eer+interval"]
    )
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(Path(options.measure[0]), options.measure[1])
        return
    x, labels = stanford_like(options.kind, options.items)
    print(f"{machine()}; {options.items:,} items, {options.kind}; processor seconds of one thread")
    print(
        f"{'metrics':16} {'verify, s':>10} {'evaluate, s':>12} {'times':>6} "
        f"{'MiB beyond inputs':>18}"
    )
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", x)
        np.save(Path(folder) / "labels.npy", labels)

        def run(work: str) -> tuple[float, float]:
            command = [sys.executable, __file__, "--measure", folder, work]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, mebibytes = map(float, done.stdout.split())
            return seconds, mebibytes

        for work in options.metrics:
            pairs = [(run(work), run("evaluate")) for _ in range(options.pairs)]
            ours, theirs = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
            ratio = statistics.median(a[0] / b[0] for a, b in pairs)
            memory = max(a[1] for a, _ in pairs)
            print(f"{work:16} {ours:10.1f} {theirs:12.1f} {ratio:6.2f} {memory:18.0f}", flush=True)


if __name__ == "__main__":
    main()
