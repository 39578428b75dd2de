"""The case of sentence-transformers' InformationRetrievalEvaluator.

UKPLab/sentence-transformers 85ec6455, tests/evaluation/test_information_retrieval_evaluator.py, `test_metrices`:
sentences become sums of one-hot vectors of five keywords; the fourth query has two relevant documents.
"""

from __future__ import annotations

import numpy as np
import pytest

from dml_eval_rs import evaluate

QUERIES = np.array(
    [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]], np.float32
)
CORPUS = np.array(
    [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0]], np.float32
)
RELEVANT = ([0, 1, 2, 3, 5, 6], [0, 1, 2, 3, 4, 4])


@pytest.mark.parametrize("ties", ["index", "optimistic", "pessimistic", "expected"])
def test_every_figure_is_theirs_under_any_ties(ties: str) -> None:
    found = evaluate(
        QUERIES,
        relevant=RELEVANT,
        gallery=CORPUS,
        ties=ties,  # type: ignore[arg-type]
        recall_at=(1, 3),
        precision_at=(1, 3),
        recall_share_at=(1, 3),
        ndcg_at=3,
        reciprocal_rank_at=3,
        average_precision_at=5,
    )
    figures = {
        "recall@1": 1.0,  # accuracy@1
        "recall@3": 1.0,
        "precision@1": 1.0,
        "precision@3": 0.4,
        "recall_share@1": 0.9,
        "recall_share@3": 1.0,
        "ndcg@3": 1.0,
        "reciprocal_rank@3": 1.0,
        "average_precision@5": 1.0,
    }
    assert {name: found[name] for name in figures} == pytest.approx(figures, abs=1e-9)
