"""Metrics should be equal to the metrics of scikit-learn and pytorch-metric-learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from eval_support.rankings import listed

from dml_eval_rs import Relevance, evaluate, relevance_from_labels


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    """Draw distinct similarities of 40 queries to 120 items, as dot products with the unit
    vectors.
    """
    return np.random.default_rng(0).normal(size=(40, 120))


@pytest.fixture(scope="module")
def grades() -> np.ndarray:
    return np.random.default_rng(1).choice([0, 0, 0, 0, 1, 2, 5], (40, 120))


def test_average_precision_is_scikit_learns(scores: np.ndarray, grades: np.ndarray) -> None:
    found = evaluate(
        scores, Relevance(*listed(grades)), np.eye(120), similarity="dot", metrics="map"
    )
    theirs = [sklearn.metrics.average_precision_score(g > 0, s) for g, s in zip(grades, scores)]
    np.testing.assert_allclose(found.per_query["map"], theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ties", ["index", "expected"])
@pytest.mark.parametrize("k", [1, 10, 120])
def test_ndcg_is_scikit_learns(scores: np.ndarray, grades: np.ndarray, ties: str, k: int) -> None:
    """Note that scikit-learn also averages over the orders of tied items."""
    if ties == "expected":
        scores = np.round(scores)
    options: Any = {"similarity": "dot", "metrics": f"ndcg@{k}", "ties": ties}
    found = evaluate(scores, Relevance(*listed(grades)), np.eye(120), **options)
    theirs = sklearn.metrics.ndcg_score(grades, scores, k=k)
    assert found[f"ndcg@{k}"] == pytest.approx(theirs, abs=1e-12)


def test_average_precision_of_the_whole_ranking_is_pytorch_metric_learnings() -> None:
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    pytest.importorskip("faiss")  # the calculator needs faiss
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 8, 200)
    x = (rng.normal(size=(8, 16))[labels] + rng.normal(size=(200, 16))).astype(np.float32)
    names = (
        "mean_average_precision",
        "mean_average_precision_at_r",
        "r_precision",
        "mean_reciprocal_rank",
    )
    theirs = calculator.AccuracyCalculator(include=names, k=199).get_accuracy(
        torch.from_numpy(x), torch.from_numpy(labels)
    )
    found = evaluate(
        x, labels, similarity="euclidean", metrics=("map", "map@r", "r_precision", "mrr")
    )
    # pytorch-metric-learning uses float32.
    np.testing.assert_allclose(
        list(found.values()), [theirs[name] for name in names], rtol=0, atol=1e-6
    )


def test_precision_of_several_labels_is_that_of_every_pair() -> None:
    """Hashing papers use this protocol for NUS-WIDE: items match if they share a label."""
    rng = np.random.default_rng(0)
    hot = rng.random((90, 12)) < 0.15
    x = rng.normal(size=(90, 6))
    found = evaluate(
        x, relevance_from_labels(hot), metrics=("precision@5", "map@5"), unmatched="zero"
    )
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    matches = (hot.astype(int) @ hot.T > 0)[np.arange(90)[:, None], np.argsort(-similarity)[:, :-1]]
    assert found["precision@5"] == pytest.approx(matches[:, :5].mean(), abs=1e-12)
    precisions = np.cumsum(matches, axis=1) / np.arange(1, 90)
    totals = np.minimum(5, matches.sum(axis=1))
    sums = (precisions * matches)[:, :5].sum(axis=1)
    expected = np.divide(sums, totals, out=np.zeros(90), where=totals > 0)
    assert found["map@5"] == pytest.approx(expected.mean(), abs=1e-12)
