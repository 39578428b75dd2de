"""Evaluations: mappings in the requested order, intervals and paired tests, and labels that must
stay distinct.
"""

from __future__ import annotations

import json
import pydoc
from collections.abc import Mapping

import numpy as np
import pytest

from dml_eval_rs import Evaluation, Interval, evaluate

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(40), 5)
CENTRES = RNG.normal(size=(40, 8))
NAMES = ["mrr", "recall@10", "ndcg@5", "map@r", "precision@5", "minp", "recall@1"]
NAMES += ["ir_recall@5", "map", "map@5"]


def noisy(scale: float, seed: int = 1) -> np.ndarray:
    return CENTRES[LABELS] + scale * np.random.default_rng(seed).normal(size=(200, 8))


@pytest.fixture(scope="module")
def better() -> Evaluation:
    return evaluate(noisy(0.8), LABELS, metrics=NAMES)


@pytest.fixture(scope="module")
def worse() -> Evaluation:
    return evaluate(noisy(1.6, 2), LABELS, metrics=NAMES)


def test_it_is_a_mapping_in_the_order_asked(better: Evaluation) -> None:
    assert isinstance(better, Mapping)
    assert [*better] == [*better.keys()] == [*dict(better)] == [*better.per_query] == NAMES
    assert len(better) == len(NAMES)
    assert (
        [*better.values()]
        == [better[name] for name in NAMES]
        == [value for _, value in better.items()]
    )
    assert "map@r" in better
    assert "recall@2" not in better
    assert better.get("recall@2") is None
    assert all(type(value) is float for value in better.values())


def test_a_metric_that_was_not_measured_is_named_with_those_that_were(better: Evaluation) -> None:
    with pytest.raises(
        KeyError, match="no metric 'recall@2' was measured; expected one of mrr, recall@10, "
    ):
        better["recall@2"]
    for name in ("recall@2", "nmi"):
        with pytest.raises(KeyError, match=f"no metric '{name}' per query; expected one of mrr, "):
            better.confidence_interval(name)


def test_a_string_is_one_metric_and_a_repeated_one_counts_once() -> None:
    one, listed = (evaluate(noisy(1), LABELS, metrics=of) for of in ("map@r", ["map@r"]))
    assert dict(one) == dict(listed)
    assert [*evaluate(noisy(1), LABELS, metrics=iter(["mrr", "map@r", "mrr"]))] == ["mrr", "map@r"]


def test_by_default_it_has_the_metrics_of_the_field() -> None:
    assert [*evaluate(noisy(1), LABELS)] == [
        "recall@1", "recall@10", "recall@100", "precision@1", "r_precision", "map@r", "mrr",
    ]  # fmt: skip


def test_metrics_of_clusters_keep_their_places_and_have_no_values_per_query() -> None:
    found = evaluate(noisy(1), LABELS, metrics=["nmi_max", "mrr", "ari", "nmi", "recall@1", "ami"])
    assert [*found] == ["nmi_max", "mrr", "ari", "nmi", "recall@1", "ami"]
    assert [*found.per_query] == ["mrr", "recall@1"]
    assert found["nmi_max"] <= found["nmi"]
    alone = evaluate(noisy(1), [*LABELS[1:], 99], metrics="nmi")
    assert [*alone] == ["nmi"]
    assert not alone.per_query
    assert (alone.n_queries, alone.n_unmatched, alone.n_gallery) == (200, 1, 200)
    assert json.loads(json.dumps(alone.to_dict()))["nmi"] == alone["nmi"]
    assert "NMI" in str(alone)


def test_means_are_those_of_the_values_per_query(better: Evaluation) -> None:
    for name, values in better.per_query.items():
        assert values.dtype == np.float64
        assert better[name] == pytest.approx(values.mean(), abs=1e-12)
    assert better["recall@1"] == evaluate(noisy(0.8), LABELS, metrics="precision@1")["precision@1"]


def test_queries_without_a_match_are_omitted_and_counted_or_misses() -> None:
    x, labels = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), [0, 0, 1]
    skipped, missed = (
        evaluate(x, labels, metrics=NAMES, unmatched=rule) for rule in ("skip", "zero")
    )
    assert (skipped.n_queries, skipped.n_unmatched, missed.n_unmatched) == (3, 1, 1)
    assert np.isnan(skipped.per_query["map@r"]).tolist() == [False, False, True]
    assert skipped["map@r"] == 1.0
    assert "without a match" in str(skipped)
    for name in NAMES:
        np.testing.assert_array_equal(
            missed.per_query[name], np.nan_to_num(skipped.per_query[name])
        )
        assert missed[name] == pytest.approx(2 / 3 * skipped[name])
    assert evaluate(x, [0, 1, 2], unmatched="zero")["recall@1"] == 0


def test_intervals_are_reproducible_and_cover_the_mean(better: Evaluation) -> None:
    first = better.confidence_interval("map@r", seed=3)
    assert first == better.confidence_interval("map@r", seed=3)
    assert first != better.confidence_interval("map@r", seed=4)
    assert first.low < better["map@r"] < first.high
    wider = better.confidence_interval("map@r", level=0.99, seed=3)
    assert wider.low < first.low < first.high < wider.high


def test_an_interval_has_the_width_of_the_normal_one(better: Evaluation) -> None:
    interval = better.confidence_interval("mrr")
    values = better.per_query["mrr"]
    normal = 2 * 1.96 * values.std() / np.sqrt(len(values))
    # If there are 200 values and 2,000 resamples, the bootstrap error is about 5 %.
    assert interval.high - interval.low == pytest.approx(normal, rel=0.2)


def test_a_difference_is_significant_and_none_is_not(better: Evaluation, worse: Evaluation) -> None:
    for name in NAMES:
        comparison = better.compare(worse, name)
        assert comparison.difference == pytest.approx(better[name] - worse[name], abs=1e-12)
        assert comparison.p_value < 0.01
        assert comparison.interval.low > 0
        same = better.compare(better, name)
        assert (same.difference, same.p_value) == (0.0, 1.0)


def test_the_permutation_test_agrees_with_all_sign_flips() -> None:
    labels = [0, 0, 0, 1, 1, 1]
    first, second = (
        evaluate(np.random.default_rng(seed).normal(size=(6, 3)), labels) for seed in (1, 5)
    )
    difference = first.per_query["mrr"] - second.per_query["mrr"]
    signs = np.array(np.meshgrid(*[[-1, 1]] * 6)).reshape(6, -1).T
    exact = np.mean(np.abs(signs @ difference) >= abs(difference.sum()) * (1 - 1e-12))
    # Three standard errors of 10,000 random sign flips are at most 0.015.
    assert first.compare(second, "mrr").p_value == pytest.approx(exact, abs=0.015)


def test_comparisons_need_the_same_queries(better: Evaluation) -> None:
    with pytest.raises(ValueError, match="200 and 100 queries"):
        better.compare(evaluate(noisy(1.0)[:100], LABELS[:100]), "map@r")
    with pytest.raises(ValueError, match="different queries without a match"):
        better.compare(evaluate(noisy(1.0), [*LABELS[1:], 99]), "map@r")
    with pytest.raises(ValueError, match="level is 95"):
        better.confidence_interval("map@r", level=95)


def test_per_class_means_average_to_the_mean(better: Evaluation) -> None:
    for name in NAMES:
        by_class = better.per_class(name, LABELS)
        assert list(by_class) == list(range(40))
        assert np.mean(list(by_class.values())) == pytest.approx(better[name], abs=1e-12)
    with pytest.raises(ValueError, match=r"labels has shape \(3,\); expected \(200,\)"):
        better.per_class("map@r", [1, 2, 3])


def test_equal_evaluations_are_equal(better: Evaluation) -> None:
    assert better == evaluate(noisy(0.8), LABELS, metrics=NAMES)
    assert better != evaluate(noisy(0.8), LABELS, metrics=NAMES[::-1])
    assert better != evaluate(noisy(0.8)[::-1], LABELS, metrics=NAMES)
    assert better != dict(better)
    shifted = {**better.per_query, "map@r": better.per_query["map@r"] + 1e-9}
    assert better != Evaluation.from_dict(better.to_dict(), shifted)
    unmatched = [*LABELS[1:], 99]
    assert evaluate(noisy(1), unmatched) == evaluate(
        noisy(1), unmatched
    )  # unmatched queries have NaN


def test_it_is_saved_as_one_flat_mapping_and_restored(better: Evaluation) -> None:
    saved = better.to_dict()
    assert saved == {**better, "n_queries": 200, "n_unmatched": 0, "n_gallery": 200}
    with_clusters = evaluate(noisy(1), LABELS, metrics=["nmi", "map@r"])
    for evaluation in (better, with_clusters):
        loaded = json.loads(json.dumps({**evaluation.to_dict(), "step": 3}))
        restored = Evaluation.from_dict(loaded, evaluation.per_query)
        assert restored == evaluation
        assert restored.confidence_interval("map@r") == evaluation.confidence_interval("map@r")
    with pytest.raises(
        KeyError, match=r"metrics has no mrr.*; expected a value per name in per_query"
    ):
        Evaluation.from_dict(
            {"map@r": 0.5, **{name: 1 for name in saved if name.startswith("n_")}}, better.per_query
        )


def test_intervals_and_comparisons_are_printed_for_people(better: Evaluation) -> None:
    assert str(Interval(0.123456789, 0.2, 0.95)) == "0.1235 to 0.2000 (95 %)"
    assert str(Interval(0.0, 1.0, 0.999)) == "0.0000 to 1.0000 (99.9 %)"
    text = str(better.compare(better, "recall@1"))
    assert text == "recall@1: difference +0.0000, 0.0000 to 0.0000 (95 %), p = 1.0000, 200 queries"
    assert repr(better).startswith("Evaluation({'mrr': ")


def test_help_begins_with_the_docstring() -> None:
    lines = pydoc.render_doc(Evaluation, renderer=pydoc.plaintext).splitlines()
    assert lines[2].startswith("class Evaluation")
    assert any("measured metrics by name" in line for line in lines[3:6])


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2**53, 2**53 + 1, 2**53, 2**53 + 1]),
        np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 2], np.uint64),
        np.array([True, False, True, False]),
        np.array(["a", "b", "a", "b"]),
        ["x", "y", "x", "y"],
        [-2, 0, -2, 0],
    ],
)
def test_labels_of_every_kind_and_size_stay_distinct(labels: object) -> None:
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert evaluate(x, labels, metrics="recall@1")["recall@1"] == 0
    assert evaluate(x[[0, 2, 1, 3]], labels, metrics="recall@1")["recall@1"] == 1


def test_signed_and_unsigned_labels_of_any_byte_order_meet_without_loss() -> None:
    x = np.eye(3)
    for queries, gallery in ((np.int64, np.uint64), (">i8", ">u8")):
        sides = np.array([-2, 2**53 + 1, 5], queries), np.array([2**64 - 2, 2**53, 5], gallery)
        result = evaluate(x, sides[0], x, sides[1], metrics="recall@1")
        assert (result.n_unmatched, result["recall@1"]) == (2, 1)
    same = evaluate(
        x, np.array([1, 0, 1], bool), x, np.array([0, 1, 1], np.uint64), metrics="recall@1"
    )
    assert (same.n_unmatched, same["recall@1"]) == (0, 1 / 3)
    extremes = np.array([-(2**63), 2**63 - 1, -(2**63), 2**63 - 1])
    assert evaluate(np.eye(4)[[0, 1, 0, 1]], extremes, metrics="recall@1")["recall@1"] == 1


def test_a_k_beyond_the_gallery_means_all_of_it() -> None:
    result = evaluate(noisy(3.0), LABELS, metrics=["recall@1", f"recall@{10**12}"])
    assert [*result] == ["recall@1", "recall@1000000000000"]
    assert result["recall@1000000000000"] == 1.0
