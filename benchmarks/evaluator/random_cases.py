"""Random cases against the slow reference, whose metrics are fractions: levels of labels, several rules for ties, and
streams with lists.

Usage: python benchmarks/evaluator/random_cases.py FIRST NUMBER. A seed makes a case; a difference ends the search.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from dml_eval_rs import Evaluation, StreamingEvaluator, _native, evaluate_levels, evaluate_ties

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "dml-eval-rs" / "tests"))
from eval_support import retrieval_reference as reference

TIES = ("index", "optimistic", "pessimistic", "expected")
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
METRICS = [
    "precision@2", "average_precision@2", "ndcg@3", "recall_share@2", "reciprocal_rank@2", "average_precision",
    "inverse_negative_penalty",
]  # fmt: skip
OPTIONS: dict[str, Any] = {
    "recall_at": (1, 3), "precision_at": 2, "average_precision_at": 2, "ndcg_at": 3, "recall_share_at": 2,
    "reciprocal_rank_at": 2, "average_precision": True, "unmatched": "zero", "threads": 1,
}  # fmt: skip
# A metric is a sum of a few products, each rounded once.
TOLERANCE = 1e-12
NATIVE = {name: getattr(_native, name) for name in ("evaluate", "evaluate_codes", "evaluate_levels")}


class Case:
    """A random relation of a few rows of small integers, so that ties are frequent."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.similarity, ties = SIMILARITIES[seed % 4], TIES[seed // 4 % 4]
        self.measure = {0: self.stream, 1: self.rules}.get(seed % 5, self.levels)
        self.own = bool(rng.random() < 0.4) and seed % 5 > 0
        self.queries = self.rows(int(rng.integers(2, 6)))
        self.gallery = None if self.own else self.rows(int(rng.integers(2, 7)))
        self.items = len(self.queries) if self.gallery is None else len(self.gallery)
        self.options: dict[str, Any] = {"ties": ties}
        self.expected: dict[str, Any] = {
            "ties": ties, "unmatched": "zero", "similarity": self.similarity, "recall_at": (1, 3), "metrics": METRICS,
        }  # fmt: skip
        if rng.random() < 0.3:
            ignored = [set(rng.permutation(self.items)[: rng.integers(0, 3)].tolist()) for _ in self.queries]
            self.options["ignored"] = listed(ignored)
            self.expected["ignored"] = ignored
        if not self.own and rng.random() < 0.3:
            self.options["indices"] = self.expected["indices"] = rng.integers(
                -1, self.items, len(self.queries)
            )

    def rows(self, n: int) -> np.ndarray:
        codes = self.similarity == "hamming"
        x = self.rng.integers(0 if codes else -2, 3, (n, 2))
        x[~x.any(axis=1)] = 1
        dtypes = [np.uint8] if codes else [np.float16, np.float32, np.float64]
        return x.astype(dtypes[self.rng.integers(len(dtypes))])

    def stream(self) -> list[tuple[Evaluation, dict[str, np.ndarray]]]:
        """Evaluate graded lists in two blocks, the second first."""
        assert self.gallery is not None
        rng = self.rng
        relevant = [
            {int(i): int(rng.integers(0, 4)) for i in rng.permutation(self.items)[: rng.integers(0, 4)]}
            for _ in self.queries
        ]
        grades = [grade for matches in relevant for grade in matches.values()]
        evaluator = StreamingEvaluator(
            self.queries, similarity=self.similarity, relevant=(*listed(relevant), grades), **self.options, **OPTIONS
        )  # fmt: skip
        cut = int(rng.integers(1, self.items))
        for step in (evaluator.find_positives, evaluator.count_negatives):
            for part in (slice(cut, self.items), slice(0, cut)):
                step(self.gallery[part], first_index=part.start)
        expected = reference.evaluate(
            self.queries, None, self.gallery, None, relevant=relevant, **self.expected
        )
        return [(evaluator.result(), expected)]

    def labels(self) -> list[np.ndarray]:
        """Draw labels of both sides, and sometimes groups."""
        rng = self.rng
        labels = [rng.integers(0, 4, n) for n in (len(self.queries), self.items)]
        if rng.random() < 0.3:
            self.options["groups"] = self.expected["groups"] = rng.integers(0, 2, len(self.queries))
            if not self.own:
                self.options["gallery_groups"] = self.expected["gallery_groups"] = rng.integers(
                    0, 2, self.items
                )
        return labels

    def count_somehow(self, name: str) -> Any:
        """Let this function count by the screen, from tables, or by both."""
        many = [None, 1, 2][self.rng.integers(3)]
        return patch.object(
            _native, name, lambda *a, **options: NATIVE[name](*a, **options, many_positives=many)
        )

    def rules(self) -> list[tuple[Evaluation, dict[str, np.ndarray]]]:
        """Evaluate under several rules for ties."""
        labels, others = self.labels()
        given = (self.queries, labels, self.gallery, None if self.own else others)
        self.options["ties"] = self.rng.permutation(TIES)[self.rng.integers(0, 3) :].tolist()
        with self.count_somehow("evaluate_codes" if self.similarity == "hamming" else "evaluate"):
            found = evaluate_ties(*given, similarity=self.similarity, **self.options, **OPTIONS)
        return [
            (measured, reference.evaluate(*given, **{**self.expected, "ties": rule}))
            for rule, measured in found.items()
        ]

    def levels(self) -> list[tuple[Evaluation, dict[str, np.ndarray]]]:
        """Evaluate classes and superclasses, counted by the screen or from tables."""
        fine = self.labels()
        labels, others = ({"class": side, "superclass": side // 2} for side in fine)
        with self.count_somehow("evaluate_levels"):
            gallery_labels = None if self.own else others
            found = evaluate_levels(
                self.queries,
                labels,
                self.gallery,
                gallery_labels,
                similarity=self.similarity,
                **self.options,
                **OPTIONS,
            )
        return [
            (
                level,
                reference.evaluate(
                    self.queries,
                    labels[name],
                    self.gallery,
                    None if self.own else others[name],
                    **self.expected,
                ),
            )
            for name, level in found.items()
        ]


def listed(lists: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, lists)]), np.array([item for items in lists for item in items], int)


def main(first: int, number: int) -> None:
    """Compare the cases of these seeds, and print how far values are apart."""
    start, values, largest = time.perf_counter(), 0, 0.0
    for seed in range(first, first + number):
        case = Case(seed)
        for found, expected in case.measure():
            for name, column in expected.items():
                distance = float(np.abs(found.per_query[name] - column).max())
                if not distance <= TOLERANCE:
                    sys.exit(f"seed {seed}: {name} is {found.per_query[name]}; expected {column}")
                values, largest = values + len(column), max(largest, distance)
    seconds = time.perf_counter() - start
    print(
        f"{number:,} cases from {first}: {values:,} values, none different, largest distance {largest:.1e}, "
        f"{seconds:.0f} s"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
