"""Intervals by class agree with enumerating all resamples, and tests by class with enumerating all
sign flips.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dml_eval_rs import METRICS, Evaluation, evaluate


def of_values(values: list[float]) -> Evaluation:
    """Return an evaluation with these reciprocal ranks."""
    unmatched = int(np.isnan(values).sum())
    return Evaluation(
        {"mrr": float(np.nanmean(values))}, {"mrr": np.array(values)}, len(values), unmatched, 9
    )


VALUES = [0.5, 1.0, 0.25, 1.0, np.nan, 0.125, 0.5, 0.0, 1.0]
CLASSES = np.array(["a", "a", "b", "b", "b", "c", "c", "c", "d"])


def test_percentiles_of_class_resamples_are_those_of_all_of_them() -> None:
    """Note that 4 classes have 4⁴ resamples, which are equally likely."""
    means = []
    for drawn in itertools.product("abcd", repeat=4):
        inside = np.concatenate([np.array(VALUES)[np.char.equal(CLASSES, name)] for name in drawn])
        means.append(np.nanmean(inside))
    for level in (0.5, 0.9):
        interval = of_values(VALUES).confidence_interval("mrr", level, by=CLASSES)
        for found, q in ((interval.low, (1 - level) / 2), (interval.high, (1 + level) / 2)):
            # The share of 2,000 draws below a number has a standard deviation of at most 0.0112;
            # allow for four.
            low, high = np.quantile(means, [max(0, q - 0.045), min(1, q + 0.045)])
            assert low <= found <= high


def test_the_paired_test_by_class_agrees_with_all_signs_of_the_classes() -> None:
    rng = np.random.default_rng(0)
    by = np.arange(60) % 7
    a, b = rng.random(60), rng.random(60) * 0.7
    difference = a - b
    sums = np.array([difference[by == c].sum() for c in range(7)])
    flips = [abs(np.dot(signs, sums)) for signs in itertools.product((-1, 1), repeat=7)]
    exact = np.mean(np.array(flips) >= abs(sums.sum()) * (1 - 1e-12))
    found = of_values(a.tolist()).compare(of_values(b.tolist()), "mrr", by=by)
    # Over 10,000 draws of signs, the p-value's standard error is at most 0.005; allow for four.
    assert found.p_value == pytest.approx(exact, abs=0.02)
    assert found.difference == pytest.approx(difference.mean(), abs=1e-12)
    assert found.interval.low < found.difference < found.interval.high


def test_queries_that_agree_within_classes_have_wider_intervals() -> None:
    """If classes have m equal queries, the mean's deviation is √m times larger than for independent
    queries.
    """
    rng = np.random.default_rng(1)
    values, by = np.repeat(rng.random(200), 9), np.repeat(np.arange(200), 9)
    result = of_values(values.tolist())
    by_class, by_query = (result.confidence_interval("mrr", by=labels) for labels in (by, None))
    ratio = (by_class.high - by_class.low) / (by_query.high - by_query.low)
    assert ratio == pytest.approx(3, rel=0.1)


def test_classes_of_single_queries_give_the_interval_by_query() -> None:
    rng = np.random.default_rng(2)
    result, other = of_values(rng.random(50).tolist()), of_values(rng.random(50).tolist())
    alone = np.arange(50)
    assert result.confidence_interval("mrr", by=alone) == result.confidence_interval("mrr")
    assert result.compare(other, "mrr", by=alone) == result.compare(other, "mrr")


def test_every_metric_has_intervals_and_tests_by_class() -> None:
    rng = np.random.default_rng(3)
    labels = np.arange(120) % 20
    centres = rng.normal(size=(20, 6))[labels]
    names = [
        name.replace("@K", "@5") for name, metric in METRICS.items() if metric.kind == "retrieval"
    ]
    better, worse = (
        evaluate(centres + scale * rng.normal(size=(120, 6)), labels, metrics=names)
        for scale in (0.8, 2)
    )
    for name in names:
        interval = better.confidence_interval(name, by=labels)
        assert interval.low <= better[name] <= interval.high
        comparison = better.compare(worse, name, by=labels)
        assert comparison.p_value < 0.01 < comparison.difference


@pytest.mark.parametrize(
    ("by", "error", "message"),
    [
        (np.arange(8), ValueError, r"by has shape \(8,\); expected \(9,\)"),
        (np.zeros((9, 2), int), ValueError, r"by has shape \(9, 2\)"),
        (np.zeros(9), TypeError, "by has dtype float64"),
        (np.zeros(9, int), ValueError, "by has 1 class, counting only matched queries"),
    ],
    ids=["length", "dimensions", "floats", "one class"],
)
def test_wrong_classes_are_refused(by: np.ndarray, error: type[Exception], message: str) -> None:
    result = of_values(VALUES)
    with pytest.raises(error, match=message):
        result.confidence_interval("mrr", by=by)
    with pytest.raises(error, match=message):
        result.compare(result, "mrr", by=by)


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (-1, ValueError, r"seed is -1; expected 0 to 2\*\*64 - 1"),
        (0.5, TypeError, "seed is 0.5; expected an integer"),
        (None, TypeError, "seed is None; expected an integer"),
    ],
)
def test_a_wrong_seed_is_refused(seed: object, error: type[Exception], message: str) -> None:
    result = of_values(VALUES)
    with pytest.raises(error, match=message):
        result.confidence_interval("mrr", seed=seed)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        result.compare(result, "mrr", seed=seed)  # type: ignore[arg-type]
