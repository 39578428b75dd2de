"""The cases of pytorch-metric-learning's AccuracyCalculator.

KevinMusgrave/pytorch-metric-learning 216a792, tests/utils/test_calculate_accuracies.py. Its own relations are functions
that compare labels; here they are lists of the pairs for which the function holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support.rankings import evaluate_ranks, listed

from dml_eval_rs import Evaluation, Relevance, evaluate

# Their precision_at_1, r_precision, mean_average_precision_at_r and mean_average_precision.
METRICS = ("precision@1", "r_precision", "map@r", "map")
NEIGHBOURS = np.array(
    [[0, 1, 1, 2, 2], [1, 0, 1, 1, 3], [4, 4, 4, 4, 2], [3, 1, 3, 1, 3], [0, 0, 4, 2, 2], [1, 2, 3, 4, 5]]
)
QUERY_LABELS = np.array([1, 1, 2, 3, 4, 0])
COUNTS = {0: 2, 1: 3, 2: 5, 3: 4, 4: 5}


def map_over_r(found: Evaluation, k: int, numbers: np.ndarray) -> np.ndarray:
    """Their mean_average_precision: AP@k divided by R, not by min(k, R)."""
    return found.per_query[f"map@{k}"] * np.minimum(k, numbers) / numbers


@pytest.mark.parametrize("includes_query", [False, True])
def test_accuracy_calculator(includes_query: bool) -> None:
    """`test_accuracy_calculator`.

    Labels of five neighbours, the first of which is the query if the references include it.
    """
    first = int(includes_query)
    labels, k = NEIGHBOURS[:, first:], 5 - first
    numbers = np.array([COUNTS[label] - first for label in QUERY_LABELS.tolist()])
    ranks = []
    for row, label, number in zip(labels, QUERY_LABELS, numbers):
        own = (1 + np.flatnonzero(row == label)).tolist()
        ranks.append(own + list(range(50, 50 + number - len(own))))
    found = evaluate_ranks(ranks, 60, metrics=(*METRICS[:3], f"map@{k}", f"mrr@{k}"))
    figures = {
        "precision@1": [[0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]],
        "r_precision": [[2 / 3, 2 / 3, 1 / 5, 2 / 4, 1 / 5, 0], [1, 1 / 2, 1 / 4, 1 / 3, 1 / 4, 0]],
        "map@r": [
            [(1 / 2 + 2 / 3) / 3, (1 + 2 / 3) / 3, 1 / 5 / 5, (1 + 2 / 3) / 4, 1 / 3 / 5, 0],
            [1, 1 / 2 / 2, 1 / 4 / 4, 1 / 2 / 3, 1 / 2 / 4, 0],
        ],
        # Theirs is 0 for a query without a match among the neighbours.
        f"mrr@{k}": [[1 / 2, 1, 1 / 5, 1, 1 / 3, 0], [1, 1 / 2, 1 / 4, 1 / 2, 1 / 2, 0]],
    }
    for name, both in figures.items():
        np.testing.assert_allclose(found.per_query[name], both[first], rtol=1e-12, atol=0, err_msg=name)
        by_class = found.per_class(name, QUERY_LABELS)  # return_per_class; avg_of_avgs is their mean
        of_1 = np.mean(both[first][:2])
        expected = [both[first][5], of_1, *both[first][2:5]]
        np.testing.assert_allclose(list(by_class.values()), expected, rtol=1e-12, atol=0, err_msg=name)
    precisions = [
        [(1 / 2 + 2 / 3) / 3, (1 + 2 / 3 + 3 / 4) / 3, 1 / 25, (1 + 2 / 3 + 3 / 5) / 4, 1 / 15, 0],
        [1, (1 / 2 + 2 / 3) / 2, 1 / 16, (1 / 2 + 2 / 4) / 3, 1 / 8, 0],
    ]
    np.testing.assert_allclose(map_over_r(found, k, numbers), precisions[first], rtol=1e-12, atol=0)


HALF_EQUAL_LABELS = np.array([(1, 3), (0, 3), (0, 3), (0, 3), (1, 2), (4, 5)])
NEAR_LABELS = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100])
REFERENCE_LABELS = np.array([0, 0, 0, 1, 2, 2, 3, 4, 5])
# Labels of the queries and of the references (None: the queries), when they match, own items, and the lone queries.
LONE: dict[str, tuple[Any, Any, Any, Any, list[int]]] = {
    "near": (NEAR_LABELS, None, lambda a, b: abs(a - b) < 2, None, [11]),
    "far": (NEAR_LABELS, None, lambda a, b: abs(a - b) > 99, None, list(range(2, 11))),
    "two numbers": (HALF_EQUAL_LABELS, None, np.array_equal, None, [0, 4, 5]),
    "a copy": (HALF_EQUAL_LABELS, HALF_EQUAL_LABELS, np.array_equal, None, []),
    "half equal": (HALF_EQUAL_LABELS, None, lambda a, b: a[0] == b[0] and a[1] != b[1], None, [1, 2, 3, 5]),
    "references": (np.arange(7), REFERENCE_LABELS, np.equal, None, [6]),
    "own items": (np.arange(7), REFERENCE_LABELS, np.equal, [0, 3, 4, 6, 7, 8, -1], [1, 3, 4, 5, 6]),
}


@pytest.mark.parametrize("case", LONE)
def test_lone_queries(case: str) -> None:
    """`test_get_lone_query_labels`, `test_get_lone_query_labels_custom` and `test_get_lone_query_labels_multi_dim`."""
    labels, others, compare, exclude, expected = LONE[case]
    against = labels if others is None else others
    matches = Relevance(*listed([[bool(compare(a, b)) for b in against] for a in labels])[:2])
    gallery = None if others is None else np.ones((len(others), 1))
    found = evaluate(np.ones((len(labels), 1)), matches, gallery, metrics="mrr", exclude=exclude)
    assert np.flatnonzero(np.isnan(found.per_query["mrr"])).tolist() == expected


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def test_numbers_on_a_line() -> None:
    """`_test_accuracy_calculator_and_faiss`."""
    line, labels = column(*range(10)), np.arange(10)
    same = evaluate(line, labels, line.copy(), labels, similarity="euclidean", metrics=METRICS)
    assert list(same.values()) == [1, 1, 1, 1]
    halves = column(*range(10), *(i + 0.5 for i in range(10)))
    gallery = halves, np.concatenate([labels, np.ones(10, int)])
    found = evaluate(line, labels, *gallery, exclude=np.arange(10), similarity="euclidean", metrics=METRICS)
    ranks = [1, 2, 5, 7, 9, 11, 13, 15, 17, 19]
    assert (found["precision@1"], found["r_precision"], found.n_unmatched) == (1, 0.5, 9)
    assert found["map@r"] == pytest.approx(sum(i / r for i, r in enumerate(ranks[:5], 1)) / 10, rel=1e-12)
    assert found["map"] == pytest.approx(sum(i / r for i, r in enumerate(ranks, 1)) / 10, rel=1e-12)


@pytest.mark.parametrize("as_relation", [False, True], ids=["labels", "own relation"])
def test_averages_of_class_averages(as_relation: bool) -> None:
    """`_test_accuracy_calculator_and_faiss_avg_of_avgs`, and the same with labels of two numbers."""
    x, references = column(*range(9), 100), column(-100, *range(1, 10))
    labels, reference_labels = np.array([0] * 9 + [1]), np.array([1] + [0] * 9)
    given: tuple[Any, ...] = labels, references, reference_labels
    if as_relation:
        given = Relevance(*listed(labels[:, None] == reference_labels)[:2]), references
    found = evaluate(x, *given, similarity="euclidean", metrics=METRICS)
    for name, mean, by_class in zip(METRICS, (0.9, 0.9, 0.9, 0.91), (0.5, 0.5, 0.5, 0.55)):
        assert found[name] == pytest.approx(mean, rel=1e-12)
        assert np.mean(list(found.per_class(name, labels).values())) == pytest.approx(by_class, rel=1e-12)


def test_an_own_relation_on_a_line() -> None:
    """`_test_accuracy_calculator_custom_comparison_function`, the simple case."""
    found = evaluate(
        column(0, 1),
        Relevance([0, 3, 4], [2, 3, 4, 1]),
        column(*range(5)),
        similarity="euclidean",
        metrics=METRICS,
    )
    figures = [0.5, (1 / 3 + 1) / 2, (1 / 9 + 1) / 2, ((1 / 3 + 2 / 4 + 3 / 5) / 3 + 1) / 2]
    assert list(found.values()) == pytest.approx(figures, rel=1e-12)


@pytest.mark.parametrize(
    ("references", "exclude", "figures"),
    [
        (
            [10, 0.03, 0.04, 0.05], None,
            [0.5, (2 / 3 + 1) / 2, ((1 / 2 + 2 / 3) / 3 + 1) / 2, ((1 / 2 + 2 / 3 + 3 / 4) / 3 + 1) / 2],
        ),
        (
            [0.01, 0.02, 10, 0.03], [0, 1],
            [0.5, 0.5, ((1 / 2) / 2 + 1 / 2) / 2, ((1 / 2 + 2 / 3) / 2 + (1 + 2 / 3) / 2) / 2],
        ),
    ],
    ids=["references", "references include queries"],
)  # fmt: skip
def test_labels_that_are_real_numbers(references: Any, exclude: Any, figures: Any) -> None:
    """`_test_accuracy_calculator_float_custom_comparison_function`: labels match if they differ by less than 1."""
    matches = Relevance(*listed(np.abs(np.array([[0.01], [0.02]]) - references) < 1)[:2])
    options: dict[str, Any] = {"exclude": exclude, "similarity": "euclidean", "metrics": METRICS}
    found = evaluate(column(0, 3), matches, column(0, 3, 1, 2), **options)
    assert list(found.values()) == pytest.approx(figures, rel=1e-12)


@pytest.mark.parametrize("ties", ["index", "optimistic", "pessimistic", "expected"])
def test_tied_distances(ties: Any) -> None:
    """`test_tied_distances`: the query itself is excluded, not the first of two items at its place."""
    found = evaluate(column(10, 10, 20, 20), [1, 0, 1, 0], similarity="euclidean", ties=ties)
    assert found["precision@1"] == 0


def test_many_tied_distances() -> None:
    """`test_many_tied_distances`: they expect about one half, which here is a mean over all orders."""
    labels = np.random.default_rng(0).integers(0, 2, 1000)
    found = evaluate(np.zeros((1000, 2)), labels, similarity="euclidean", ties="expected")
    counts = np.bincount(labels)
    assert found["precision@1"] == pytest.approx((counts * (counts - 1)).sum() / 1000 / 999, rel=1e-12)
    assert found["precision@1"] == pytest.approx(0.5, rel=0.1)


def test_queries_within_the_references_need_not_be_the_first() -> None:
    """`test_query_within_reference`: theirs must be the first references, ours have any index."""
    queries, labels = column(0, 10, 20), np.array([0, 1, 2])
    references, reference_labels = column(0, 5, 10, 15, 20), np.array([0, 9, 1, 8, 2])
    arrays = (queries, labels, references, reference_labels)
    options: dict[str, Any] = {"similarity": "euclidean"}
    assert evaluate(*arrays, **options)["precision@1"] == 1
    with pytest.raises(ValueError, match="none of the 3 queries has a match"):
        evaluate(*arrays, exclude=[0, 2, 4], **options)
