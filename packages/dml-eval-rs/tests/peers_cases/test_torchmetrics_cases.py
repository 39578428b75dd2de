"""The cases of torchmetrics' retrieval metrics.

Lightning-AI/torchmetrics dab0333: the examples of src/torchmetrics/retrieval and functional/retrieval, and
`ignore_index` of tests/unittests/retrieval.
"""

from __future__ import annotations

import numpy as np
import pytest
from eval_support.rankings import evaluate_scores

from dml_eval_rs import Evaluation, verify

# Their examples: query 0 has three documents, query 1 four. Each query excludes the documents of the other one.
INDEXES = np.array([0, 0, 0, 1, 1, 1, 1])
PREDS = np.array([0.2, 0.3, 0.5, 0.1, 0.3, 0.5, 0.2])
TARGET = np.array([False, False, True, False, True, False, True])


def by_query(indexes: np.ndarray, preds: np.ndarray, target: np.ndarray, **options: object) -> Evaluation:
    own = indexes == np.unique(indexes)[:, None]
    return evaluate_scores(np.tile(preds, (len(own), 1)), np.where(own, target, 0), left_out=~own, **options)


def test_examples_of_the_classes() -> None:
    figures = {
        "map": 0.7917,
        "mrr": 0.75,
        "precision@2": 0.5,
        "ir_recall@2": 0.75,
        "ndcg@4": 0.8467,
        "r_precision": 0.75,
    }
    found = by_query(INDEXES, PREDS, TARGET, metrics=figures)
    assert dict(found) == pytest.approx(figures, abs=5e-5)
    hits = np.array([True, False, False, False, True, False, True])
    assert by_query(INDEXES, PREDS, hits, metrics="recall@2")["recall@2"] == 0.5
    # Fall-out@2: the share of the non-relevant documents among the first two.
    wrong = 2 - 2 * found.per_query["precision@2"]
    assert (wrong / [2, 2]).mean() == 0.5


def test_examples_of_the_functions() -> None:
    scores = [[0.2, 0.3, 0.5]]
    # The curve up to 2 has the precisions 1 and 0.5, and the shares 0.5 and 0.5.
    figures = {
        "map": pytest.approx(0.8333, abs=5e-5),
        "recall@2": 1,
        "precision@1": 1,
        "precision@2": 0.5,
        "ir_recall@1": 0.5,
        "ir_recall@2": 0.5,
        "r_precision": 0.5,
    }
    found = evaluate_scores(scores, [[1, 0, 1]], metrics=figures)
    assert dict(found) == figures
    assert 2 - 2 * found["precision@2"] == 1  # fall-out@2
    assert evaluate_scores(scores, [[0, 1, 0]], metrics="mrr")["mrr"] == 0.5
    pairs = verify(np.array(scores), [1], np.eye(3), [1, 0, 1], similarity="dot", metrics="auc")
    assert pairs["auc"] == 0.5
    graded = evaluate_scores([[0.1, 0.2, 0.3, 4, 70]], [[10, 0, 0, 1, 5]], metrics="ndcg@5")
    assert graded["ndcg@5"] == pytest.approx(0.6957, abs=5e-5)


def test_examples_of_the_curve() -> None:
    """RetrievalPrecisionRecallCurve and RetrievalRecallAtFixedPrecision.

    Precision and the share of matches at every K.
    """
    preds = np.array([0.4, 0.01, 0.5, 0.6, 0.2, 0.3, 0.5])
    indexes = np.array([0, 0, 0, 0, 1, 1, 1])
    target = np.array([1, 0, 0, 1, 1, 0, 1])
    names = [f"{name}@{k}" for name in ("precision", "ir_recall") for k in range(1, 5)]
    found = list(by_query(indexes, preds, target, metrics=names).values())
    assert found == pytest.approx([1, 0.5, 0.6667, 0.5, 0.5, 0.5, 1, 1], abs=5e-5)
    allowed = {k: found[k + 3] for k in range(1, 5) if found[k - 1] >= 0.8}
    assert allowed == {1: 0.5}


def test_the_example_of_auroc_is_an_auc_of_each_query() -> None:
    areas = []
    for query in (0, 1):
        own = query == INDEXES
        gallery = np.eye(own.sum()), TARGET[own].astype(int)
        areas.append(verify(PREDS[own][None], [1], *gallery, similarity="dot", metrics="auc")["auc"])
    assert np.mean(areas) == 0.75


def test_an_ignored_index_is_excluded() -> None:
    """`ignore_index=-100`: such documents are dropped before ranking."""
    rng = np.random.default_rng(2)
    indexes, preds, target = rng.integers(0, 10, 320), rng.random(320), rng.integers(0, 2, 320)
    target[indexes == 9] = 0  # no document of query 9 is relevant
    ignored = rng.random(320) > 0.7
    own = indexes == np.arange(10)[:, None]
    found = evaluate_scores(
        np.tile(preds, (10, 1)),
        np.where(own & ~ignored, target, 0),
        left_out=~own | ignored,
        metrics="precision@4",
    )
    kept = by_query(indexes[~ignored], preds[~ignored], target[~ignored], metrics="precision@4")
    assert found.to_dict() | {"n_gallery": 0} == kept.to_dict() | {"n_gallery": 0}
