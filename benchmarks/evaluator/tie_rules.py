"""All rules for ties in one call beside a call for each, alternating in one process: processor time of one thread.

    python benchmarks/evaluator/tie_rules.py [--rounds 3]

Asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from compare import machine
from data import codes_of, stanford_like

from dml_eval_rs import evaluate, evaluate_ties
from dml_eval_rs.metrics.names import DEFAULT

TIES = ("index", "optimistic", "pessimistic", "expected")


def cases() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Return rows, labels and options, by name."""
    large, small = stanford_like("hard", 20_000), stanford_like("hard", 8_000, 128)
    integers = np.random.default_rng(0).integers(-2, 3, (8_000, 8)).astype(np.float32)
    codes: dict[str, Any] = {"similarity": "hamming"}
    dot: dict[str, Any] = {"similarity": "dot"}
    return {
        "20,000 × 512, hard": (*large, {}),
        "the same, mAP and mINP": (*large, {"metrics": (*DEFAULT, "map", "minp")}),
        "8,000 × 128, hard": (*small, {}),
        "20,000 codes of 64 bits": (codes_of(large[0], 64), large[1], codes),
        "20,000 codes of 512 bits": (codes_of(large[0], 512), large[1], codes),
        "8,000 × 8 integers from -2 to 2": (integers, small[1], dot),
        "the same, classes of 160 items": (integers, np.arange(8_000) % 50, dot),
    }


def seconds(call: Any, *arguments: Any, **options: Any) -> float:
    start = time.process_time()
    call(*arguments, threads=1, **options)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{machine()}; processor seconds of one thread, and shares of the calls' time, medians")
    print(f"{'':34} {'a call for each of 4':>20} {'one call':>9} {'share':>6} {'2 rules':>8}")
    for name, (x, labels, options) in cases().items():
        times: list[tuple[float, float, float, float]] = []
        for _ in range(rounds):
            each = [seconds(evaluate, x, labels, ties=ties, **options) for ties in TIES]
            together = seconds(evaluate_ties, x, labels, **options)
            bounds = seconds(evaluate_ties, x, labels, ties=TIES[1:3], **options)
            times.append((sum(each), together, together / sum(each), bounds / sum(each[1:3])))
        calls, one, share, two = (statistics.median(column) for column in zip(*times))
        print(f"{name:34} {calls:20.2f} {one:9.2f} {share:6.2f} {two:8.2f}", flush=True)


if __name__ == "__main__":
    main()
