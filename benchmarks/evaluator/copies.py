"""Measure Recall@1 of items that search one another when some items are copies, and rank 1 is
dropped in place of the query.

    python benchmarks/evaluator/copies.py

Items have 500 classes. A share of the rows is replaced by exact copies of other rows, and either
keeps its label (a different class, like a picture that was filed twice) or takes the copied label.
Means and ranges are over the seeds.
"""

from __future__ import annotations

import numpy as np

from dml_eval_rs import evaluate, knn

ITEMS, CLASSES, DIM, SEEDS = 4_000, 500, 64, 5
SHARES = (0.0, 0.02, 0.1)


def draw(share: float, keeps_label: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw embeddings and labels, and replace a share of the rows by copies of the others."""
    rng = np.random.default_rng(seed)
    labels = np.arange(ITEMS) % CLASSES
    x = rng.normal(size=(CLASSES, DIM))[labels] + rng.normal(size=(ITEMS, DIM))
    order, n = rng.permutation(ITEMS), round(share * ITEMS)
    copies, copied = order[:n], rng.choice(order[n:], n)
    x[copies] = x[copied]
    if not keeps_label:
        labels[copies] = labels[copied]
    return x.astype(np.float32), labels


def recalls(x: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Return Recall@1 without the query, and without rank 1: the query matches itself, or not."""
    excluded = evaluate(x, labels, metrics=("recall@1",))["recall@1"]
    rows = np.arange(len(x))
    second = knn(x, x, 2)[1][:, 1]
    matches = labels[second] == labels
    return excluded, float(matches.mean()), float((matches & (second != rows)).mean())


def main() -> None:
    """Print the table."""
    print(f"{ITEMS:,} items of {CLASSES} classes, {DIM} dimensions, {SEEDS} seeds: mean (range)")
    print(
        f"{'copies':<28} {'without the query':>22} {'without rank 1:':>22}\n"
        f"{'':<51} {'the query is relevant':>22} {'not relevant':>22}"
    )
    for keeps_label in (True, False):
        for share in SHARES:
            found = np.array([recalls(*draw(share, keeps_label, seed)) for seed in range(SEEDS)])
            name = f"{share:4.0%}, {'own' if keeps_label else 'copied'} label"
            cells = [
                f"{column.mean():.3f} ({column.min():.3f}-{column.max():.3f})" for column in found.T
            ]
            print(f"{name:<28} " + " ".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()
