"""Evaluations of given rankings and scores, used for the cases from other packages' tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_eval_rs import Evaluation, Relevance, evaluate


def listed(grades: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return offsets, items and grades for all entries that are not 0 in a (queries, items)
    table.
    """
    table = np.asarray(grades)
    query, item = np.nonzero(table)
    return np.searchsorted(query, np.arange(len(table) + 1)), item, table[query, item]


def evaluate_scores(
    scores: npt.ArrayLike,
    grades: npt.ArrayLike,
    excluded: npt.ArrayLike | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate given similarities, by using dot products with unit vectors.

    Args:
        scores: (Q, G) similarities.
        grades: (Q, G) numbers, above 0 for the matches.
        excluded: (Q, G) whether to exclude an item from the query's ranking.
        options: options of `evaluate`. By default, unmatched queries count as misses.
    """
    table = np.asarray(scores, np.float64)
    ignored = None if excluded is None else listed(excluded)[:2]
    matches = Relevance(*listed(grades), ignored=ignored)
    options = {"similarity": "dot", "unmatched": "zero", **options}
    return evaluate(table, matches, np.eye(table.shape[1]), **options)


def evaluate_ranks(
    ranks: Sequence[Mapping[int, float] | Iterable[int]], items: int, **options: Any
) -> Evaluation:
    """Evaluate matches with these ranks, from 1 to `items`; use a mapping if grades are given."""
    grades = np.zeros((len(ranks), items))
    for row, matches in zip(grades, ranks):
        for rank in matches:
            row[rank - 1] = matches[rank] if isinstance(matches, Mapping) else 1
    return evaluate_scores(np.tile(-np.arange(items), (len(ranks), 1)), grades, **options)
