"""The evaluators that dml-eval-rs provides to dml-core: `exact` for embeddings, and `hamming` for
codes.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "dml_core", reason="the plugin needs dml-core, which dml-eval-rs does not require"
)

from core_support import suite
from eval_support.peers import run_together

from dml_core import (
    ComparableEvaluation,
    Evaluator,
    IntervalEvaluation,
    RestoringEvaluator,
    takes_matches,
)
from dml_core.testing import EvaluatorContract
from dml_eval_rs import (
    METRICS,
    Labels,
    binarize,
    evaluate,
    hard_negatives,
    kmeans,
    knn,
    nmi,
    plugin,
    range_search,
    relevance_from_labels,
    verify,
)

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(10), 6)
X = (RNG.normal(size=(10, 20))[LABELS] + RNG.normal(size=(60, 20))).astype(np.float32)
COMPONENTS = {component.name: component for component in plugin.dml_evaluators()}
CODES = binarize(X)
NAMES = ["exact", "hamming"]


def make(name: str, **options: Any) -> Any:
    return COMPONENTS[name].factory(**options)


def rows_of(name: str, x: np.ndarray = X) -> np.ndarray:
    return binarize(x) if name == "hamming" else x


def sides_of(name: str, given: Any) -> list[Any]:
    return [rows_of(name, side) if np.ndim(side) == 2 else side for side in given]


def similarity_of(name: str) -> Any:
    return "hamming" if name == "hamming" else "cosine"


def test_both_fit_the_protocols() -> None:
    assert sorted(COMPONENTS) == NAMES
    for name in NAMES:
        evaluator: Evaluator = make(name)
        assert takes_matches(evaluator)
        assert isinstance(evaluator, RestoringEvaluator)
    options = [set(inspect.signature(COMPONENTS[name].factory).parameters) for name in NAMES]
    assert options[0] - options[1] == {"similarity"}


@pytest.mark.parametrize("name", NAMES)
def test_their_evaluations_have_intervals_and_paired_tests(name: str) -> None:
    result = make(name, metrics=["recall@1"]).evaluate(X, LABELS)
    assert isinstance(result, IntervalEvaluation)
    assert isinstance(result, ComparableEvaluation)
    interval = result.confidence_interval("recall@1", level=0.9)
    assert interval.low <= result["recall@1"] <= interval.high
    test = result.compare(result, "recall@1")
    assert (test.difference, test.p_value, test.interval.low, test.interval.high) == (
        0.0,
        1.0,
        0.0,
        0.0,
    )


@pytest.mark.parametrize("name", NAMES)
def test_they_measure_what_evaluate_does(name: str) -> None:
    of_all = [each for each, metric in METRICS.items() if metric.kind != "verification"]
    options: dict[str, Any] = {
        "metrics": [each.replace("@K", "@2") for each in of_all], "unmatched": "zero",
        "ties": "expected", "seed": 2,
        "n_clusters": 7, "threads": 1,
    }  # fmt: skip
    evaluator = make(name, **options)
    rows, similarity = rows_of(name), similarity_of(name)
    labels = Labels(LABELS, np.arange(60) % 3, ignored=(np.arange(61), np.roll(np.arange(60), 1)))
    for n, given in ((60, (labels,)), (30, (LABELS[:30], X, Labels(LABELS, junk=3)))):
        expected = evaluate(rows[:n], *sides_of(name, given), similarity=similarity, **options)
        found = evaluator.evaluate(X[:n], *given)
        assert found.to_dict().keys() == expected.to_dict().keys()
        np.testing.assert_equal(dict(found.per_query), dict(expected.per_query))
    lists = relevance_from_labels([{label, label // 3} for label in LABELS.tolist()], graded=True)
    measured = make(name, metrics=["ndcg@5", "map"]).evaluate(X, lists)
    assert measured == evaluate(rows, lists, similarity=similarity, metrics=["ndcg@5", "map"])


def test_exact_takes_a_similarity_and_searches_by_it() -> None:
    evaluator = make("exact", similarity="dot", metrics=["recall@3", "nmi_min"], n_clusters=7)
    expected = evaluate(X, LABELS, similarity="dot", metrics=["recall@3", "nmi_min"], n_clusters=7)
    assert evaluator.evaluate(X, LABELS) == expected
    np.testing.assert_array_equal(
        evaluator.nearest(X, X, 3, exclude_self=True)[1],
        knn(X, X, 3, similarity="dot", exclude_self=True)[1],
    )
    assert (evaluator.bytes_per_item(20), make("hamming").bytes_per_item(20)) == (80, 3)


def test_hamming_binarizes_at_its_threshold() -> None:
    evaluator = make(
        "hamming", threshold=0.1, ties="expected", metrics=["recall@1", "nmi", "nmi_max"]
    )
    codes = binarize(X, 0.1)
    result = evaluator.evaluate(X[:30], LABELS[:30], X, LABELS)
    expected = evaluate(
        codes[:30],
        LABELS[:30],
        codes,
        LABELS,
        similarity="hamming",
        ties="expected",
        metrics="recall@1",
    )
    assert result["recall@1"] == expected["recall@1"]
    # The 20 bits are clustered as numbers; padding of codes should not be used.
    bits = np.unpackbits(np.concatenate([codes[:30], codes]), axis=1, count=20).astype(np.float32)
    joined, clusters = np.concatenate([LABELS[:30], LABELS]), kmeans(bits, 10).labels
    assert result["nmi"] == nmi(joined, clusters)
    assert result["nmi_max"] == nmi(joined, clusters, average="max")
    np.testing.assert_array_equal(
        evaluator.nearest(X[:5], X, 4)[0], knn(codes[:5], codes, 4, similarity="hamming")[0]
    )


@pytest.mark.parametrize("name", NAMES)
def test_searches_are_those_of_the_package(name: str) -> None:
    evaluator, rows, options = make(name), rows_of(name), {"similarity": similarity_of(name)}
    threshold = 5 if name == "hamming" else 0.5
    below: Any = {"below": "hardest", "margin": 0.5}
    pairs = [
        (evaluator.nearest(X[:5], X, 4), knn(rows[:5], rows, 4, **options)),
        (
            evaluator.within(X[:5], X, threshold, max_results=100),
            range_search(rows[:5], rows, threshold, **options),
        ),
        (evaluator.hard_negatives(X, LABELS, 3), hard_negatives(rows, LABELS, 3, **options)),
        (
            evaluator.hard_negatives(X, LABELS, 3, **below),
            hard_negatives(rows, LABELS, 3, **below, **options),
        ),
    ]
    for found, expected in pairs:
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    scores, indices = evaluator.nearest(X[:0], X, 4)
    assert (scores.shape, indices.shape) == ((0, 4), (0, 4))


@pytest.mark.parametrize("name", NAMES)
def test_true_accept_rates_are_those_of_verify_beside_other_metrics(name: str) -> None:
    rates = ["tar@far=0.1", "tar@far=1e-2"]
    rows, similarity = rows_of(name), similarity_of(name)
    groups = Labels(LABELS, np.arange(60) % 3)
    for given in ((LABELS,), (groups,), (LABELS, X[:30], LABELS[:30])):
        sides = sides_of(name, given)
        expected = verify(rows, *sides, metrics=rates, similarity=similarity)
        measured = make(name, metrics=[rates[0], "map@r", rates[1]]).evaluate(X, *given)
        assert list(measured) == [rates[0], "map@r", rates[1]]
        assert [measured[rate] for rate in rates] == [expected[rate] for rate in rates]
        assert measured["map@r"] == evaluate(rows, *sides, similarity=similarity)["map@r"]
        assert list(measured.per_query) == ["map@r"]
        found = make(name).true_accept_rates([0.1, 0.01], X, *given)
        assert found == {0.1: expected[rates[0]], 0.01: expected[rates[1]]}
    alone = make(name, metrics=rates).evaluate(X, LABELS)
    assert list(alone) == rates
    assert alone.n_queries == 60
    with pytest.raises(ValueError, match="needs labels, but labels is a Relevance"):
        make(name, metrics=rates).evaluate(
            X, relevance_from_labels([{label} for label in LABELS.tolist()])
        )


@pytest.mark.parametrize("name", NAMES)
def test_peers_share_the_work_and_get_the_bits_of_one(name: str) -> None:
    evaluator = make(name, metrics=["map@r", "tar@far=0.1", "nmi"], threads=1)
    alone = evaluator.evaluate(X, LABELS)
    for shared in run_together(2, lambda peer: evaluator.evaluate_with_peers(peer, X, LABELS)):
        assert shared == alone


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_is_restored_from_json_and_its_values_per_query(name: str) -> None:
    evaluator = make(name, metrics=["recall@1", "nmi", "map@r", "tar@far=0.1"])
    measured = evaluator.evaluate(X, LABELS)
    saved = json.loads(json.dumps({**measured.to_dict(), "step": 3}))
    restored = evaluator.restore(saved, dict(measured.per_query))
    assert restored == measured
    assert restored.confidence_interval("map@r") == measured.confidence_interval("map@r")


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "exact",
            {"metrics": ["recal@1"]},
            ValueError,
            "unknown metric 'recal@1'; did you mean 'recall@1'",
        ),
        ("exact", {"similarity": "l2"}, ValueError, "similarity is 'l2'"),
        ("exact", {"ties": "none"}, ValueError, "ties is 'none'"),
        ("hamming", {"unmatched": "none"}, ValueError, "unmatched is 'none'"),
        ("hamming", {"metrics": ["tar@far=2"]}, ValueError, "needs a FAR between 0 and 1"),
        ("hamming", {"similarity": "dot"}, TypeError, "similarity"),
        ("exact", {"threshold": 0.5}, ValueError, "threshold is 0.5 with similarity='cosine'"),
        (
            "exact",
            {"n_clusters": 3},
            ValueError,
            "n_clusters is 3, but no clustering metric is requested",
        ),
        ("exact", {"n_clusters": 0, "metrics": ["nmi"]}, ValueError, "n_clusters is 0"),
        ("exact", {"seed": -1}, ValueError, "seed is -1"),
        ("hamming", {"threads": 0}, ValueError, "threads is 0"),
        ("hamming", {"threshold": "high"}, TypeError, "threshold is"),
    ],
)
def test_wrong_options_are_refused_before_any_training(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(name, **options)


TestExact = suite(EvaluatorContract, COMPONENTS["exact"].factory)
TestHamming = suite(EvaluatorContract, COMPONENTS["hamming"].factory)
