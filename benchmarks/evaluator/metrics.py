"""More metrics and relations beside the plain `evaluate`, alternating in one process: processor time of one thread.

    python benchmarks/evaluator/metrics.py [--items 20000] [--kind hard] [--rounds 3]

Asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from compare import machine
from data import stanford_like

from dml_eval_rs import Labels, evaluate, relevance_from_labels
from dml_eval_rs.metrics.names import DEFAULT


def _with(*names: str) -> tuple[str, ...]:
    return (*DEFAULT, *names)


def _at(k: int) -> tuple[str, ...]:
    return _with(*(f"{name}@{k}" for name in ("precision", "map", "ndcg", "ir_recall")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--kind", choices=("hard", "easy"), default="hard")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    x, labels = stanford_like(options.kind, options.items)
    own = np.arange(options.items)
    relevance = relevance_from_labels([{label} for label in labels.tolist()])
    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: evaluate(x, labels, threads=1),
        "groups": lambda: evaluate(x, Labels(labels, own % 6), threads=1),
        "precision, MAP, nDCG, IR recall at 10": lambda: evaluate(x, labels, threads=1, metrics=_at(10)),
        "the same at 100": lambda: evaluate(x, labels, threads=1, metrics=_at(100)),
        "nDCG at 1,000": lambda: evaluate(x, labels, threads=1, metrics=_with("ndcg@1000")),
        "mAP and mINP": lambda: evaluate(x, labels, threads=1, metrics=_with("map", "minp")),
        "a separate gallery of the same rows": lambda: evaluate(
            x, labels, x.copy(), labels, exclude=own, threads=1
        ),
        "the same matches as Relevance": lambda: evaluate(x, relevance, threads=1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    print(f"{machine()}; {options.items:,} items, {options.kind}; processor seconds of one thread")
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, seconds["plain"]))
        print(f"{name:42} {min(times):8.2f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
