"""The case of sentence-transformers' InformationRetrievalEvaluator.

UKPLab/sentence-transformers 85ec6455, tests/evaluation/test_information_retrieval_evaluator.py, `test_metrices`:
sentences become sums of one-hot vectors of five keywords; the fourth query has two relevant documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dml_eval_rs import Relevance, evaluate

QUERIES = np.array(
    [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]], np.float32
)
CORPUS = np.array(
    [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0]], np.float32
)
RELEVANCE = Relevance([0, 1, 2, 3, 5, 6], [0, 1, 2, 3, 4, 4])


@pytest.mark.parametrize("ties", ["index", "optimistic", "pessimistic", "expected"])
def test_every_figure_is_theirs_under_any_ties(ties: Any) -> None:
    figures = {
        "recall@1": 1.0,  # accuracy@1
        "recall@3": 1.0,
        "precision@1": 1.0,
        "precision@3": 0.4,
        "ir_recall@1": 0.9,
        "ir_recall@3": 1.0,
        "ndcg@3": 1.0,
        "mrr@3": 1.0,
        "map@5": 1.0,
    }
    found = evaluate(QUERIES, RELEVANCE, CORPUS, ties=ties, metrics=figures)
    assert dict(found) == pytest.approx(figures, abs=1e-9)
