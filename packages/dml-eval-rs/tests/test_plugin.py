"""The evaluators that dml-eval-rs provides to dml-core."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest

pytest.importorskip("dml_core", reason="the plugin needs dml-core, which dml-eval-rs does not require")

from dml_core import ComparableEvaluation, Evaluator, IntervalEvaluation, RestoringEvaluator
from dml_core.testing import EvaluatorContract
from dml_eval_rs import ami, ari, binarize, evaluate, evaluate_codes, kmeans, knn, knn_codes, nmi, plugin

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(10), 6)
X = (RNG.normal(size=(10, 20))[LABELS] + RNG.normal(size=(60, 20))).astype(np.float32)
FACTORIES = {component.name: component.factory for component in plugin.dml_evaluators()}


def test_both_fit_the_protocol() -> None:
    assert sorted(FACTORIES) == ["exact", "hamming"]
    for factory in FACTORIES.values():
        evaluator: Evaluator = factory()
        for name in ("evaluate", "nearest", "bytes_per_item"):
            assert callable(getattr(evaluator, name))


@pytest.mark.parametrize("name", ["exact", "hamming"])
def test_their_evaluations_have_intervals_and_paired_tests(name: str) -> None:
    result = FACTORIES[name](recall_at=[1]).evaluate(X, LABELS)
    assert isinstance(result, IntervalEvaluation)
    assert isinstance(result, ComparableEvaluation)
    interval = result.confidence_interval("recall@1", level=0.9)
    assert interval.low <= result.recall[1] <= interval.high
    test = result.compare(result, "recall@1")
    assert (test.difference, test.p_value, test.interval.low, test.interval.high) == (0.0, 1.0, 0.0, 0.0)


def test_exact_passes_its_options_on() -> None:
    evaluator = FACTORIES["exact"](
        similarity="dot",
        recall_at=[1, 3],
        ties="pessimistic",
        nmi=True,
        nmi_average="min",
        n_clusters=7,
        seed=2,
    )
    expected = evaluate(
        X,
        LABELS,
        similarity="dot",
        recall_at=[1, 3],
        ties="pessimistic",
        nmi=True,
        nmi_average="min",
        n_clusters=7,
        seed=2,
    )
    assert evaluator.evaluate(X, LABELS).to_dict() == expected.to_dict()
    np.testing.assert_array_equal(
        evaluator.nearest(X, X, 3, exclude_self=True)[1], knn(X, X, 3, similarity="dot", exclude_self=True)[1]
    )
    assert evaluator.bytes_per_item(20) == 80


@pytest.mark.parametrize("name", ["exact", "hamming"])
def test_both_measure_every_metric_that_evaluate_does(name: str) -> None:
    given = inspect.signature(evaluate_codes).parameters
    options = {option: [2] for option in given if option.endswith("_at")} | {"average_precision": True}
    measured = FACTORIES[name](**options, unmatched="zero", ties="expected").evaluate(X, LABELS)
    expected = (
        evaluate(X, LABELS, **options, unmatched="zero", ties="expected")
        if name == "exact"
        else evaluate_codes(binarize(X), LABELS, **options, unmatched="zero", ties="expected")
    )
    assert measured == expected
    assert {"recall_share@2", "reciprocal_rank@2", "ndcg@2"} <= set(measured.per_query)


def test_hamming_binarizes_at_its_threshold() -> None:
    evaluator = FACTORIES["hamming"](threshold=0.1, ties="expected", nmi=True)
    codes = binarize(X, 0.1)
    result = evaluator.evaluate(X[:30], LABELS[:30], X, LABELS)
    assert result.recall == evaluate_codes(codes[:30], LABELS[:30], codes, LABELS, ties="expected").recall
    assert result.nmi is not None
    bits = np.unpackbits(np.concatenate([codes[:30], codes]), axis=1, count=20).astype(np.float32)
    assert result.nmi == nmi(np.concatenate([LABELS[:30], LABELS]), kmeans(bits, 10).labels)
    assert evaluator.evaluate(X, LABELS).nmi is not None
    clusters = kmeans(bits, 10).labels
    joined = np.concatenate([LABELS[:30], LABELS])
    assert (result.ami, result.ari) == (ami(joined, clusters), ari(joined, clusters))
    other = FACTORIES["hamming"](threshold=0.1, nmi=True, nmi_average="max")
    assert other.evaluate(X[:30], LABELS[:30], X, LABELS).nmi == nmi(joined, clusters, average="max")
    np.testing.assert_array_equal(evaluator.nearest(X[:5], X, 4)[0], knn_codes(codes[:5], codes, 4)[0])
    assert evaluator.bytes_per_item(20) == 3


@pytest.mark.parametrize("name", ["exact", "hamming"])
def test_an_empty_batch_of_queries_has_no_neighbours(name: str) -> None:
    scores, indices = FACTORIES[name]().nearest(X[:0], X, 4)
    assert (scores.shape, indices.shape) == ((0, 4), (0, 4))


def test_an_evaluation_is_restored_from_json_and_its_per_query_values() -> None:
    for name, factory in FACTORIES.items():
        evaluator = factory(recall_at=[1, 3], nmi=name == "exact")
        assert isinstance(evaluator, RestoringEvaluator)
        measured = evaluator.evaluate(X, LABELS)
        saved = json.loads(json.dumps(measured.to_dict() | {"step": 3}))
        restored = evaluator.restore(saved, dict(measured.per_query))
        assert restored == measured
        assert restored.confidence_interval("map_at_r") == measured.confidence_interval("map_at_r")


class TestExact(EvaluatorContract):
    def make_evaluator(self) -> Evaluator:
        return FACTORIES["exact"]()


class TestHamming(EvaluatorContract):
    def make_evaluator(self) -> Evaluator:
        return FACTORIES["hamming"]()
