"""The cases of scikit-learn's ranking metrics.

scikit-learn, sklearn/metrics/tests/test_ranking.py: the toy data of the ROC and precision-recall curves and of label
ranking, as literals. One query with given scores is a ranking; its items are pairs with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from eval_support.rankings import evaluate_scores

from dml_eval_rs import Verification, verify


def of_scores(truth: Any, scores: Any, **options: Any) -> Verification:
    """Verify pairs of these scores: dot products of 1 with the scores."""
    column = np.asarray(scores, np.float64)[:, None]
    return verify(np.ones((1, 1)), [1], column, np.asarray(truth, int), similarity="dot", **options)


@pytest.mark.parametrize(
    ("truth", "scores", "far", "tar", "area"),
    [
        ([0, 1], [0, 1], [0, 0, 1], [0, 1, 1], 1.0),
        ([0, 1], [1, 0], [0, 1, 1], [0, 0, 1], 0.0),
        ([1, 0], [1, 1], [0, 1], [0, 1], 0.5),
        ([1, 0], [1, 0], [0, 0, 1], [0, 1, 1], 1.0),
        ([1, 0], [0.5, 0.5], [0, 1], [0, 1], 0.5),
    ],
    ids=["right", "wrong", "tied ones", "first", "tied halves"],
)
def test_roc_toy_data(truth: Any, scores: Any, far: Any, tar: Any, area: float) -> None:
    """`test_roc_curve_toydata`."""
    found = of_scores(truth, scores, metrics="auc")
    assert found["auc"] == area
    assert (found.roc.far.tolist(), found.roc.tar.tolist()) == (far, tar)


@pytest.mark.parametrize("truth", [[0, 0], [1, 1]])
def test_a_curve_of_one_class_is_refused(truth: Any) -> None:
    """`test_roc_curve_toydata` and `test_roc_curve_one_label`: NaN and a warning there, an error here."""
    with pytest.raises(ValueError, match="pairs"):
        of_scores(truth, [0.25, 0.75])


@pytest.mark.parametrize(
    ("truth", "scores", "thresholds"),
    [
        ([0, 0, 0, 0, 1, 1], [0.0, 0.2, 0.5, 0.6, 0.7, 1.0], {1.0, 0.7, 0.0}),
        (
            [0] * 7 + [1] * 6,
            [0.0, 0.1, 0.6, 0.6, 0.7, 0.8, 0.9, 0.6, 0.7, 0.8, 0.9, 0.9, 1.0],
            {1.0, 0.9, 0.7, 0.6, 0.0},
        ),
    ],
    ids=["separate", "repeated"],
)
def test_the_curve_is_the_same_line(truth: Any, scores: Any, thresholds: set[float]) -> None:
    """`test_roc_curve_drop_intermediate`: the kept corners differ where the curve is straight, the line does not."""
    found = of_scores(truth, scores, metrics="auc")
    far, tar, kept = sklearn.metrics.roc_curve(truth, scores)
    assert set(kept[1:].tolist()) == thresholds
    all_far, all_tar, _ = sklearn.metrics.roc_curve(truth, scores, drop_intermediate=False)
    corners = set(zip(all_far.round(12).tolist(), all_tar.round(12).tolist()))
    assert set(zip(found.roc.far.round(12).tolist(), found.roc.tar.round(12).tolist())) <= corners
    assert found["auc"] == pytest.approx(sklearn.metrics.auc(far, tar), abs=1e-12)


@pytest.mark.parametrize(
    ("truth", "scores", "figure"),
    [
        ([0, 1], [0, 1], 1.0),
        ([0, 1], [1, 0], 0.5),
        ([1, 0], [1, 1], 0.5),
        ([1, 0], [1, 0], 1.0),
        ([1, 0], [0.5, 0.5], 0.5),
        ([1, 1], [0.25, 0.75], 1.0),
    ],
    ids=["right", "wrong", "tied ones", "first", "tied halves", "all"],
)
def test_average_precision_toy_data(truth: Any, scores: Any, figure: float) -> None:
    """`test_precision_recall_curve_toydata`: one match tied with others comes last, as under pessimistic ties."""
    assert evaluate_scores([scores], [truth], ties="pessimistic", metrics="map")["map"] == figure


# `check_lrap_toy`: scores of one sample, and its label ranking average precision by the labels that are true.
RANKINGS: dict[tuple[float, ...], dict[str, float]] = {
    (0.25, 0.75): {"01": 1},
    (0.75, 0.25): {"01": 1 / 2, "11": 1},
    (0.25, 0.5, 0.75): {
        "001": 1, "010": 1 / 2, "011": 1, "100": 1 / 3, "101": (2 / 3 + 1) / 2, "110": (2 / 3 + 1 / 2) / 2,
    },
    (0.75, 0.5, 0.25): {
        "001": 1 / 3, "010": 1 / 2, "011": (1 / 2 + 2 / 3) / 2, "100": 1, "101": (1 + 2 / 3) / 2, "110": 1, "111": 1,
    },
    (0.5, 0.75, 0.25): {
        "001": 1 / 3, "010": 1, "011": (1 + 2 / 3) / 2, "100": 1 / 2, "101": (1 / 2 + 2 / 3) / 2, "110": 1, "111": 1,
    },
    (0.5, 0.5): {"10": 0.5, "01": 0.5, "11": 1},
    (0.25, 0.5, 0.5): {
        "001": 0.5, "010": 0.5, "011": 1, "100": 1 / 3, "101": (2 / 3 + 1 / 2) / 2, "110": (2 / 3 + 1 / 2) / 2,
        "111": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("scores", RANKINGS, ids=str)
def test_label_ranking_average_precision_is_average_precision_with_pessimistic_ties(scores: Any) -> None:
    for labels, figure in RANKINGS[scores].items():
        truth = [int(label) for label in labels]
        found = evaluate_scores([scores], [truth], ties="pessimistic", metrics=("map", "minp"))
        assert found["map"] == pytest.approx(figure, abs=1e-12)
        # Coverage error: the rank of the last match.
        coverage = sum(truth) / found["minp"]
        assert coverage == pytest.approx(sklearn.metrics.coverage_error([truth], [scores]), abs=1e-12)


@pytest.mark.parametrize(
    ("truth", "figure"), [([1, 1, 0], 2 / 3), ([1, 1, 1, 0], 3 / 4)], ids=["two of three", "three of four"]
)
def test_several_matches_tied_with_others_share_the_last_place_there(truth: list[int], figure: float) -> None:
    """The only toy cases that differ: no order of the items gives their figure, which lies between our bounds."""
    scores = [0.5] * len(truth)
    assert sklearn.metrics.label_ranking_average_precision_score([truth], [scores]) == pytest.approx(figure)
    low, mean, high = (
        evaluate_scores([scores], [truth], ties=ties, metrics="map")["map"]
        for ties in ("pessimistic", "expected", "optimistic")
    )
    assert low < figure < mean < high == 1


def test_a_constant_predictor() -> None:
    """`test_average_precision_constant_values`.

    There the share of matches, 0.25; here the mean over all orders is above it.
    """
    truth = np.arange(100) % 4 == 0
    assert sklearn.metrics.average_precision_score(truth, np.ones(100)) == 0.25
    found = evaluate_scores(np.ones((1, 100)), [truth], ties="expected", metrics="map")
    orders = np.random.default_rng(0).permuted(np.tile(truth, (4000, 1)), axis=1)
    sampled = (np.cumsum(orders, axis=1) / np.arange(1, 101) * orders).sum(axis=1) / 25
    assert found["map"] == pytest.approx(sampled.mean(), abs=5 * sampled.std() / 4000**0.5)
    assert found["map"] > 0.25
