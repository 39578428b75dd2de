"""Methods of a result, and labels that must stay distinct."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dml_eval_rs import Evaluation, evaluate

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(40), 5)
CENTRES = RNG.normal(size=(40, 8))


def noisy(scale: float, seed: int = 1) -> np.ndarray:
    return CENTRES[LABELS] + scale * np.random.default_rng(seed).normal(size=(200, 8))


@pytest.fixture(scope="module")
def better() -> Evaluation:
    return evaluate(noisy(0.8), LABELS, recall_at=(1, 10))


@pytest.fixture(scope="module")
def worse() -> Evaluation:
    return evaluate(noisy(1.6, 2), LABELS, recall_at=(1, 10))


def test_means_are_those_of_the_per_query_values(better: Evaluation) -> None:
    assert list(better.per_query) == [
        "recall@1", "recall@10", "precision_at_1", "r_precision", "map_at_r", "reciprocal_rank",
    ]  # fmt: skip
    assert better.recall[10] == pytest.approx(better.per_query["recall@10"].mean(), abs=1e-12)
    assert better.mean_reciprocal_rank == pytest.approx(better.per_query["reciprocal_rank"].mean(), abs=1e-12)
    assert better.precision_at_1 == better.recall[1]


def test_queries_without_a_match_are_omitted_and_counted() -> None:
    x = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    result = evaluate(x, [0, 0, 1])
    assert (result.n_queries, result.n_unmatched) == (3, 1)
    assert np.isnan(result.per_query["map_at_r"]).tolist() == [False, False, True]
    assert result.map_at_r == 1.0
    assert "without a match" in str(result)


def test_intervals_are_reproducible_and_cover_the_mean(better: Evaluation) -> None:
    first = better.confidence_interval("map_at_r", seed=3)
    assert first == better.confidence_interval("map_at_r", seed=3)
    assert first != better.confidence_interval("map_at_r", seed=4)
    assert first.low < better.map_at_r < first.high
    wider = better.confidence_interval("map_at_r", level=0.99, seed=3)
    assert wider.low < first.low < first.high < wider.high


def test_an_interval_has_the_width_of_the_normal_one(better: Evaluation) -> None:
    interval = better.confidence_interval("reciprocal_rank")
    values = better.per_query["reciprocal_rank"]
    normal = 2 * 1.96 * values.std() / np.sqrt(len(values))
    # With 200 values and 2,000 resamples, the bootstrap's own error is about 5 %.
    assert interval.high - interval.low == pytest.approx(normal, rel=0.2)


def test_a_difference_is_significant_and_none_is_not(better: Evaluation, worse: Evaluation) -> None:
    comparison = better.compare(worse, "map_at_r")
    assert comparison.difference == pytest.approx(better.map_at_r - worse.map_at_r, abs=1e-12)
    assert comparison.p_value < 0.001
    assert comparison.interval.low > 0
    same = better.compare(better, "map_at_r")
    assert (same.difference, same.p_value) == (0.0, 1.0)


def test_the_permutation_test_agrees_with_all_sign_flips() -> None:
    labels = [0, 0, 0, 1, 1, 1]
    first = evaluate(np.random.default_rng(1).normal(size=(6, 3)), labels)
    second = evaluate(np.random.default_rng(5).normal(size=(6, 3)), labels)
    difference = first.per_query["reciprocal_rank"] - second.per_query["reciprocal_rank"]
    signs = np.array(np.meshgrid(*[[-1, 1]] * 6)).reshape(6, -1).T
    exact = np.mean(np.abs(signs @ difference) >= abs(difference.sum()) * (1 - 1e-12))
    # 10,000 random sign flips: three standard errors are at most 0.015.
    assert first.compare(second, "reciprocal_rank").p_value == pytest.approx(exact, abs=0.015)


def test_comparisons_need_the_same_queries(better: Evaluation) -> None:
    other = evaluate(noisy(1.0)[:100], LABELS[:100])
    with pytest.raises(ValueError, match="200 and 100 queries"):
        better.compare(other, "map_at_r")
    with pytest.raises(KeyError, match="no metric 'map'"):
        better.confidence_interval("map")
    with pytest.raises(ValueError, match="level is 95"):
        better.confidence_interval("map_at_r", level=95)


def test_per_class_means_average_to_the_mean(better: Evaluation) -> None:
    by_class = better.per_class("map_at_r", LABELS)
    assert list(by_class) == list(range(40))
    assert np.mean(list(by_class.values())) == pytest.approx(better.map_at_r, abs=1e-12)
    with pytest.raises(ValueError, match=r"labels has shape \(3,\); expected \(200,\)"):
        better.per_class("map_at_r", [1, 2, 3])


def test_to_dict_is_ready_for_json(better: Evaluation) -> None:
    loaded = json.loads(json.dumps(better.to_dict()))
    assert loaded["recall"]["10"] == better.recall[10]
    assert loaded["nmi"] is None


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2**53, 2**53 + 1, 2**53, 2**53 + 1]),
        np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 2], np.uint64),
        np.array([True, False, True, False]),
        np.array(["a", "b", "a", "b"]),
        ["x", "y", "x", "y"],
        [-1, 0, -1, 0],
    ],
)
def test_labels_of_every_kind_and_size_stay_distinct(labels: object) -> None:
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert evaluate(x, labels, recall_at=1).recall == {1: 0.0}
    assert evaluate(x[[0, 2, 1, 3]], labels, recall_at=1).recall == {1: 1.0}


def test_signed_and_unsigned_labels_meet_without_loss() -> None:
    x = np.eye(3)
    queries = np.array([-1, 2**53 + 1, 5])
    gallery = np.array([2**64 - 1, 2**53, 5], np.uint64)
    result = evaluate(x, queries, x, gallery, recall_at=1)
    assert result.n_unmatched == 2
    assert result.recall == {1: 1.0}


def test_foreign_byte_orders_and_widths_change_no_label() -> None:
    x = np.eye(3)
    queries = np.array([-1, 2**53 + 1, 5], ">i8")
    gallery = np.array([2**64 - 1, 2**53, 5], ">u8")
    assert evaluate(x, queries, x, gallery, recall_at=1).n_unmatched == 2
    same = evaluate(x, np.array([1, 0, 1], bool), x, np.array([0, 1, 1], np.uint64), recall_at=1)
    assert (same.n_unmatched, same.recall) == (0, {1: 1 / 3})
    extremes = np.array([-(2**63), 2**63 - 1, -(2**63), 2**63 - 1])
    assert evaluate(np.eye(4)[[0, 1, 0, 1]], extremes, recall_at=1).recall == {1: 1.0}


def test_a_k_beyond_the_gallery_means_all_of_it_and_repeats_count_once() -> None:
    result = evaluate(noisy(3.0), LABELS, recall_at=[1, 10**12, 1])
    assert list(result.recall) == [1, 10**12]
    assert result.recall[10**12] == 1.0


@pytest.fixture(scope="module")
def complete() -> Evaluation:
    return evaluate(
        noisy(0.8),
        LABELS,
        recall_at=(1, 10),
        precision_at=(1, 5),
        average_precision_at=5,
        ndcg_at=(5, 20),
        average_precision=True,
    )


def test_each_requested_metric_has_a_name_a_mean_and_intervals(complete: Evaluation) -> None:
    worse = evaluate(
        noisy(1.6, 2),
        LABELS,
        recall_at=(1, 10),
        precision_at=(1, 5),
        average_precision_at=5,
        ndcg_at=(5, 20),
        average_precision=True,
    )
    assert list(complete.per_query)[6:] == [
        "precision@1", "precision@5", "average_precision@5", "ndcg@5", "ndcg@20", "average_precision",
        "inverse_negative_penalty",
    ]  # fmt: skip
    for name, values in complete.per_query.items():
        assert complete[name] == pytest.approx(values.mean(), abs=1e-12)
        interval = complete.confidence_interval(name)
        assert interval.low <= complete[name] <= interval.high
        assert complete.compare(worse, name).difference > 0
        by_class = complete.per_class(name, LABELS)
        assert np.mean(list(by_class.values())) == pytest.approx(complete[name], abs=1e-12)
    assert complete.cmc == complete.recall
    assert complete.precision == {1: complete.precision_at_1, 5: complete["precision@5"]}
    assert complete.average_precision_at == {5: complete["average_precision@5"]}
    assert complete.ndcg == {5: complete["ndcg@5"], 20: complete["ndcg@20"]}
    assert complete.average_precision == complete["average_precision"]
    assert complete.mean_inverse_negative_penalty == complete["mean_inverse_negative_penalty"]
    assert "mINP" in str(complete)
    with pytest.raises(KeyError, match="no metric 'ndcg@7'; expected one of 'recall@1'"):
        complete["ndcg@7"]


def test_a_saved_evaluation_is_restored(better: Evaluation, complete: Evaluation) -> None:
    for evaluation in (better, complete):
        loaded = json.loads(json.dumps(evaluation.to_dict()))
        assert Evaluation.from_dict(loaded, evaluation.per_query) == evaluation


def test_metrics_of_the_whole_ranking_say_how_to_request_them(better: Evaluation) -> None:
    for name in ("average_precision", "mean_inverse_negative_penalty"):
        with pytest.raises(
            AttributeError, match=r"was not measured.*evaluate\(..., average_precision=True\)"
        ):
            getattr(better, name)
    assert better.precision == {}


def test_unmatched_queries_are_left_out_or_misses() -> None:
    x, labels = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), [0, 0, 1]
    skipped = evaluate(x, labels, average_precision=True)
    missed = evaluate(x, labels, average_precision=True, unmatched="zero")
    assert (skipped.n_unmatched, missed.n_unmatched) == (1, 1)
    for name in skipped.per_query:
        np.testing.assert_array_equal(missed.per_query[name], np.nan_to_num(skipped.per_query[name]))
        assert missed[name] == pytest.approx(2 / 3 * skipped[name])
    assert evaluate(x, [0, 1, 2], unmatched="zero").recall[1] == 0
