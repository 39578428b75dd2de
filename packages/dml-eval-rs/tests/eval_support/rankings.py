"""Evaluations of given rankings and scores, as other packages' tests give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import Evaluation, Relevance, evaluate


def listed(grades: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return offsets, items and grades of the entries of a table of queries and items that are not 0."""
    table = np.asarray(grades)
    query, item = np.nonzero(table)
    return np.searchsorted(query, np.arange(len(table) + 1)), item, table[query, item]


def evaluate_scores(
    scores: npt.ArrayLike, grades: npt.ArrayLike, left_out: npt.ArrayLike | None = None, **options: Any
) -> Evaluation:
    """Evaluate given similarities: dot products with unit vectors are the scores themselves.

    Args:
        scores: (Q, G) similarities.
        grades: (Q, G) numbers, above 0 for the matches.
        left_out: (Q, G) whether a query's ranking excludes an item.
        options: those of `evaluate`. By default a query without a match counts as a miss.
    """
    table = np.asarray(scores, np.float64)
    ignored = None if left_out is None else listed(left_out)[:2]
    matches = Relevance(*listed(grades), ignored=ignored)
    options = {"similarity": "dot", "unmatched": "zero", **options}
    return evaluate(table, matches, np.eye(table.shape[1]), **options)


def evaluate_ranks(
    ranks: Sequence[Mapping[int, float] | Iterable[int]], items: int, **options: Any
) -> Evaluation:
    """Evaluate matches at these ranks, from 1 to `items`; a mapping gives each its grade."""
    grades = np.zeros((len(ranks), items))
    for row, matches in zip(grades, ranks):
        for rank in matches:
            row[rank - 1] = matches[rank] if isinstance(matches, Mapping) else 1
    return evaluate_scores(np.tile(-np.arange(items), (len(ranks), 1)), grades, **options)
