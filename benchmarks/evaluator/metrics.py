"""Compare calls that alternate in a process, using the processor time of a single thread.

    python benchmarks/evaluator/metrics.py [metrics | ties] [--items 20000]
        [--kind hard] [--rounds 3]

`metrics` compares further metrics and relations with the plain `evaluate`. `ties` compares all
rules for ties in a single call with a call per rule. The benchmark does not assert results.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from compare import machine
from data import codes_of, stanford_like

from dml_eval_rs import Labels, evaluate, evaluate_ties, relevance_from_labels
from dml_eval_rs.metrics.names import DEFAULT

TIES = ("index", "optimistic", "pessimistic", "expected")


def _with(*names: str) -> tuple[str, ...]:
    return (*DEFAULT, *names)


def _at(k: int) -> tuple[str, ...]:
    return _with(*(f"{name}@{k}" for name in ("precision", "map", "ndcg", "ir_recall")))


def measure(calls: dict[Any, Callable[[], object]], rounds: int) -> dict[Any, list[float]]:
    """Time all calls in all rounds."""
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return seconds


def print_metrics(items: int, kind: str, rounds: int) -> None:
    x, labels = stanford_like(kind, items)
    own = np.arange(items)
    relevance = relevance_from_labels([{label} for label in labels.tolist()])
    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: evaluate(x, labels, threads=1),
        "groups": lambda: evaluate(x, Labels(labels, own % 6), threads=1),
        "precision, MAP, nDCG, IR recall at 10": lambda: evaluate(
            x, labels, threads=1, metrics=_at(10)
        ),
        "the same at 100": lambda: evaluate(x, labels, threads=1, metrics=_at(100)),
        "nDCG at 1,000": lambda: evaluate(x, labels, threads=1, metrics=_with("ndcg@1000")),
        "mAP and mINP": lambda: evaluate(x, labels, threads=1, metrics=_with("map", "minp")),
        "a separate gallery of the same rows": lambda: evaluate(
            x, labels, x.copy(), labels, exclude=own, threads=1
        ),
        "the same matches as Relevance": lambda: evaluate(x, relevance, threads=1),
    }
    seconds = measure(calls, rounds)
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, seconds["plain"]))
        print(f"{name:42} {min(times):8.2f} {ratio:6.2f}")


def time_rules(x: Any, labels: Any, options: dict[str, Any], rounds: int) -> dict[Any, list[float]]:
    """Time a call per rule and a single call for all rules, given four rules or two."""

    def each(rules: Any) -> None:
        for ties in rules:
            evaluate(x, labels, ties=ties, threads=1, **options)

    def together(rules: Any) -> None:
        evaluate_ties(x, labels, ties=rules, threads=1, **options)

    calls = {
        (call.__name__, len(rules)): functools.partial(call, rules)
        for rules in (TIES, TIES[1:3])
        for call in (each, together)
    }
    return measure(calls, rounds)


def print_ties(items: int, kind: str, rounds: int) -> None:
    large, small = stanford_like(kind, items), stanford_like(kind, items * 2 // 5, 128)
    integers = np.random.default_rng(0).integers(-2, 3, (len(small[1]), 8)).astype(np.float32)
    codes: dict[str, Any] = {"similarity": "hamming"}
    dot: dict[str, Any] = {"similarity": "dot"}
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        f"{items:,} × 512, {kind}": (*large, {}),
        "the same, mAP and mINP": (*large, {"metrics": _with("map", "minp")}),
        f"{len(integers):,} × 128, {kind}": (*small, {}),
        f"{items:,} codes of 64 bits": (codes_of(large[0], 64), large[1], codes),
        f"{items:,} codes of 512 bits": (codes_of(large[0], 512), large[1], codes),
        f"{len(integers):,} × 8 integers from -2 to 2": (integers, small[1], dot),
        "the same, 50 classes": (integers, np.arange(len(integers)) % 50, dot),
    }
    print(f"{'':34} {'a call for each of 4':>20} {'one call':>9} {'share':>6} {'2 rules':>8}")
    for name, (x, labels, options) in cases.items():
        times = time_rules(x, labels, options, rounds)
        calls, one, of_two, both = (statistics.median(column) for column in times.values())
        print(
            f"{name:34} {calls:20.2f} {one:9.2f} {one / calls:6.2f} {both / of_two:8.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("metrics", "ties"), nargs="?", default="metrics")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--kind", choices=("hard", "easy"), default="hard")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{machine()}; {options.items:,} items, {options.kind}; processor seconds of one thread")
    table = {"metrics": print_metrics, "ties": print_ties}[options.what]
    table(options.items, options.kind, options.rounds)


if __name__ == "__main__":
    main()
