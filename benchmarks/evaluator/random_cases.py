"""Compare random cases with the slow reference, which computes metrics as fractions.

Small cases often have ties, and use levels of labels, multiple rules for ties, and shards with
lists. Pruning cases use all functions and options. The rows lie along a few directions, and sizes
are drawn so that small data takes the code paths of large data.

Usage: python benchmarks/evaluator/random_cases.py FIRST SMALL PRUNING
Pass the first seed and the number of cases per kind. A seed determines a case. A difference ends
the search.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from dml_eval_rs import Evaluation, evaluate_levels, evaluate_shards, evaluate_ties

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "dml-eval-rs" / "tests"))
from eval_support import retrieval_reference as reference
from eval_support.matches import call
from eval_support.path_cases import EVALUATIONS, SEARCHES, VERIFICATIONS, varied
from eval_support.path_data import SIZES, screens
from eval_support.trial import trial

TIES = ("index", "optimistic", "pessimistic", "expected")
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
METRICS = [
    "recall@1", "recall@3", "precision@1", "r_precision", "map@r", "mrr", "precision@2", "map@2",
    "ndcg@3",
    "ir_recall@2", "mrr@2", "map", "minp",
]  # fmt: skip
# Allow for rounding, since a metric is a sum of a few rounded products.
TOLERANCE = 1e-12


class Case:
    """Random queries and gallery: a few rows of small integers, so that ties are frequent."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.paths: Counter[str] = Counter()
        self.similarity, ties = SIMILARITIES[seed % 4], TIES[seed // 4 % 4]
        self.measure = {0: self.shards, 1: self.rules}.get(seed % 5, self.levels)
        self.own = bool(rng.random() < 0.4) and seed % 5 > 0
        self.queries = self.rows(int(rng.integers(2, 6)))
        self.gallery = None if self.own else self.rows(int(rng.integers(2, 7)))
        self.items = len(self.queries) if self.gallery is None else len(self.gallery)
        # The reference takes these options; `call` translates options for the evaluator.
        self.options: dict[str, Any] = {
            "ties": ties, "unmatched": "zero", "similarity": self.similarity, "metrics": METRICS,
        }  # fmt: skip
        if rng.random() < 0.3:
            ignored = [
                set(rng.permutation(self.items)[: rng.integers(0, 3)].tolist())
                for _ in self.queries
            ]
            self.options["ignored"] = ignored
        if not self.own and rng.random() < 0.3:
            self.options["exclude"] = rng.integers(-1, self.items, len(self.queries))

    def rows(self, n: int) -> np.ndarray:
        codes = self.similarity == "hamming"
        x = self.rng.integers(0 if codes else -2, 3, (n, 2))
        x[~x.any(axis=1)] = 1
        dtypes = [np.uint8] if codes else [np.float16, np.float32, np.float64]
        return x.astype(dtypes[self.rng.integers(len(dtypes))])

    def shards(self) -> list[tuple[Evaluation, dict[str, np.ndarray]]]:
        """Evaluate graded lists when the gallery is split in half."""
        assert self.gallery is not None
        self.gallery = self.gallery.astype(self.queries.dtype)  # all shards must use a single dtype
        rng = self.rng
        self.options["relevant"] = [
            {
                int(i): int(rng.integers(0, 4))
                for i in rng.permutation(self.items)[: rng.integers(0, 4)]
            }
            for _ in self.queries
        ]
        cut = int(rng.integers(1, self.items))
        parts = [self.gallery[:cut], self.gallery[cut:]]
        block = int(rng.integers(1, self.items + 1))
        found = call(
            evaluate_shards, [self.queries], None, parts, block=block, threads=1, **self.options
        )
        return [(found, reference.evaluate(self.queries, None, self.gallery, None, **self.options))]

    def labels(self) -> list[np.ndarray]:
        """Draw labels of queries and gallery, and sometimes groups."""
        rng = self.rng
        labels = [rng.integers(0, 4, n) for n in (len(self.queries), self.items)]
        if rng.random() < 0.3:
            self.options["groups"] = rng.integers(0, 2, len(self.queries))
            if not self.own:
                self.options["gallery_groups"] = rng.integers(0, 2, self.items)
        return labels

    def count_somehow(self) -> Any:
        """Choose at random how matches are counted: by the screen, from tables, or by both."""
        return trial(many_positives=[None, 1, 2][self.rng.integers(3)])

    def rules(self) -> list[tuple[Evaluation, dict[str, np.ndarray]]]:
        """Evaluate using multiple rules for ties."""
        labels, others = self.labels()
        given = (self.queries, labels, self.gallery, None if self.own else others)
        rules = self.rng.permutation(TIES)[self.rng.integers(0, 3) :].tolist()
        options = {**self.options, "ties": rules, "threads": 1}
        with self.count_somehow() as self.paths:
            found = call(evaluate_ties, *given, **options)
        return [
            (measured, reference.evaluate(*given, **{**self.options, "ties": rule}))
            for rule, measured in found.items()
        ]

    def levels(self) -> list[tuple[Evaluation, dict[str, np.ndarray]]]:
        """Evaluate classes and superclasses, counted by the screen or from tables."""
        fine = self.labels()
        labels, others = ({"class": side, "superclass": side // 2} for side in fine)
        if self.own:
            others = dict.fromkeys(labels)
        with self.count_somehow() as self.paths:
            found = call(
                evaluate_levels,
                self.queries,
                labels,
                self.gallery,
                others,
                threads=1,
                **self.options,
            )
        return [
            (
                level,
                reference.evaluate(
                    self.queries, labels[name], self.gallery, others[name], **self.options
                ),
            )
            for name, level in found.items()
        ]


def small(first: int, number: int, paths: Counter[str]) -> None:
    """Compare small cases to print the largest difference."""
    start, values, largest = time.perf_counter(), 0, 0.0
    for seed in range(first, first + number):
        case = Case(seed)
        for found, expected in case.measure():
            for name, column in expected.items():
                distance = float(np.abs(found.per_query[name] - column).max())
                if not distance <= TOLERANCE:
                    sys.exit(f"seed {seed}: {name} is {found.per_query[name]}; expected {column}")
                values, largest = values + len(column), max(largest, distance)
        paths.update(case.paths)
    seconds = time.perf_counter() - start
    print(
        f"{number:,} small cases from {first}: {values:,} values, none different, largest distance "
        f"{largest:.1e}, {seconds:.0f} s"
    )


def pruning(first: int, number: int, paths: Counter[str]) -> None:
    """Compare pruning cases: drawn options, data, kernels and sizes."""
    start, families = time.perf_counter(), (EVALUATIONS, EVALUATIONS, SEARCHES, VERIFICATIONS)
    for seed in range(first, first + number):
        rng = np.random.default_rng(seed)

        def choose(choices: Any, rng: np.random.Generator = rng) -> Any:
            return choices[rng.integers(len(choices))]

        options = choose(families)
        name = choose([*options])
        option = varied(options[name], choose)
        case = option.case(int(rng.integers(29, 30 if options is VERIFICATIONS else 90)), seed)
        kernel, screen = choose(screens())
        sizes = {size: choose(choices) for size, choices in SIZES.items()}
        with trial(kernel=kernel, screen=screen, **sizes) as taken:
            difference = case.differ(case.call(), case.expected)
        if difference is not None:
            sys.exit(f"seed {seed}, {name}, {option}, {kernel}, {screen}, {sizes}: {difference}")
        paths.update(taken)
    print(
        f"{number:,} pruning cases from {first}: none different, {time.perf_counter() - start:.0f} "
        "s"
    )


def main(first: int, smalls: int, prunings: int) -> None:
    """Compare the cases of these seeds; print how often code paths were used."""
    paths: Counter[str] = Counter()
    small(first, smalls, paths)
    pruning(first, prunings, paths)
    for path, times in sorted(paths.items()):
        print(f"{times:>10,} {path}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
