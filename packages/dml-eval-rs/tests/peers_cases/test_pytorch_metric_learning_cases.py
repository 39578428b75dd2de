"""The cases of pytorch-metric-learning's AccuracyCalculator.

KevinMusgrave/pytorch-metric-learning 216a792, tests/utils/test_calculate_accuracies.py and
test_calculate_accuracies_large_k.py. Its own relations are functions that compare labels; here they are lists of the
pairs for which the function holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
import sklearn.metrics
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


def lone(labels: np.ndarray, others: np.ndarray | None, compare: Callable[..., Any], **options: Any) -> Any:
    """Return which queries have a match, by a relation of labels."""
    against = labels if others is None else others
    matches = np.array([[bool(compare(a, b)) for b in against] for a in labels])
    gallery = None if others is None else np.ones((len(others), 1))
    relevance = Relevance(*listed(matches)[:2])
    found = evaluate(np.ones((len(labels), 1)), relevance, gallery, metrics="mrr", **options)
    return ~np.isnan(found.per_query["mrr"])


def test_lone_queries_of_own_relations() -> None:
    """`test_get_lone_query_labels_custom`."""
    labels = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100])
    assert lone(labels, None, lambda a, b: abs(a - b) < 2).tolist() == [True] * 11 + [False]
    far = lone(labels, None, lambda a, b: abs(a - b) > 99)
    assert far.tolist() == [True, True] + [False] * 9 + [True]


def test_lone_queries_of_labels_with_two_numbers() -> None:
    """`test_get_lone_query_labels_multi_dim`, with the queries as references and with a copy of them."""
    labels = np.array([(1, 3), (0, 3), (0, 3), (0, 3), (1, 2), (4, 5)])

    def equal(a: np.ndarray, b: np.ndarray) -> bool:
        return bool((a == b).all())

    def half_equal(a: np.ndarray, b: np.ndarray) -> bool:
        return bool(a[0] == b[0] and a[1] != b[1])

    assert lone(labels, None, equal).tolist() == [False, True, True, True, False, False]
    assert lone(labels, labels, equal).all()
    for others in (None, labels):
        assert lone(labels, others, half_equal).tolist() == [True, False, False, False, True, False]


def test_lone_queries_within_other_references() -> None:
    """`test_get_lone_query_labels`."""
    queries, references = np.arange(7), np.array([0, 0, 0, 1, 2, 2, 3, 4, 5])

    def equal(a: int, b: int) -> bool:
        return a == b

    assert np.flatnonzero(~lone(queries, references, equal)).tolist() == [6]
    own = np.array([0, 3, 4, 6, 7, 8, -1])
    assert np.flatnonzero(~lone(queries, references, equal, exclude=own)).tolist() == [1, 3, 4, 5, 6]


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def test_numbers_on_a_line() -> None:
    """`_test_accuracy_calculator_and_faiss`."""
    line, labels = column(*range(10)), np.arange(10)
    same = evaluate(line, labels, line.copy(), labels, similarity="euclidean", metrics=METRICS)
    assert list(same.values()) == [1, 1, 1, 1]
    halves = column(*range(10), *(i + 0.5 for i in range(10)))
    found = evaluate(
        line,
        labels,
        halves,
        np.concatenate([labels, np.ones(10, int)]),
        exclude=np.arange(10),
        similarity="euclidean",
        metrics=METRICS,
    )
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


@pytest.mark.parametrize("includes_query", [False, True])
def test_labels_that_are_real_numbers(includes_query: bool) -> None:
    """`_test_accuracy_calculator_float_custom_comparison_function`: labels match if they differ by less than 1."""
    references = np.array([0.01, 0.02, 10, 0.03] if includes_query else [10, 0.03, 0.04, 0.05])
    found = evaluate(
        column(0, 3),
        Relevance(*listed(np.abs(np.array([0.01, 0.02])[:, None] - references) < 1)[:2]),
        column(0, 3, 1, 2),
        exclude=[0, 1] if includes_query else None,
        similarity="euclidean",
        metrics=METRICS,
    )
    figures = [
        0.5,
        (2 / 3 + 1) / 2,
        ((1 / 2 + 2 / 3) / 3 + 1) / 2,
        ((1 / 2 + 2 / 3 + 3 / 4) / 3 + 1) / 2,
    ]
    if includes_query:
        figures = [0.5, 0.5, ((1 / 2) / 2 + 1 / 2) / 2, ((1 / 2 + 2 / 3) / 2 + (1 + 2 / 3) / 2) / 2]
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


@pytest.mark.parametrize("k", [-1, 0, 1.5, "max"])
def test_a_wrong_k_is_refused(k: Any) -> None:
    """`test_valid_k`."""
    with pytest.raises(ValueError, match="expected"):
        evaluate(np.eye(4), [0, 0, 1, 1], metrics=f"precision@{k}")


@pytest.mark.parametrize("k", [98, "largest class", None])
@pytest.mark.parametrize("classes", [2, 11, 103])
@pytest.mark.parametrize("own", [False, True], ids=["references", "references include queries"])
def test_many_neighbours(own: bool, classes: int, k: Any) -> None:
    """test_calculate_accuracies_large_k.py: k beyond what faiss searches on a GPU."""
    rng = np.random.default_rng(493)
    x, labels = rng.random((500, 5)).astype(np.float32), rng.integers(0, classes, 500)
    numbers = np.bincount(labels)[labels] - own
    k = {98: 98, None: 500 - own, "largest class": int(numbers.max())}[k]
    distances = ((x[:, None].astype(np.float64) - x.astype(np.float64)) ** 2).sum(-1)
    if own:
        np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1)[:, : 500 - own]
    match = labels[order] == labels[:, None]
    precisions = np.cumsum(match, axis=1) / np.arange(1, 501 - own) * match
    metrics = ("precision@1", "map@r", f"map@{k}")
    options: dict[str, Any] = {"similarity": "euclidean", "metrics": metrics, "unmatched": "zero"}
    found = evaluate(x, labels, **options) if own else evaluate(x, labels, x.copy(), labels, **options)
    r = np.maximum(numbers, 1)
    at_r = np.array([row[:n].sum() for row, n in zip(precisions, numbers)]) / r
    assert found["precision@1"] == pytest.approx(match[:, 0].mean(), abs=1e-12)
    assert found["map@r"] == pytest.approx(at_r.mean(), abs=1e-12)
    theirs = precisions[:, :k].sum(axis=1) / r
    assert map_over_r(found, k, r).mean() == pytest.approx(theirs.mean(), abs=1e-12)


@pytest.mark.parametrize("offset", [0.5, 1])
def test_mutual_information_is_scikit_learns(offset: float) -> None:
    """`test_mutual_information`: within a tenth, since the clusterings differ."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(500, 32)), rng.normal(size=(500, 32)) + offset])
    labels = np.repeat([0, 1], 500)
    found = evaluate(x, labels, similarity="euclidean", metrics=("nmi", "ami"))
    clusters = sklearn.cluster.KMeans(n_clusters=2, n_init=10, random_state=0).fit_predict(x)
    assert found["nmi"] == pytest.approx(
        sklearn.metrics.normalized_mutual_info_score(labels, clusters), rel=0.1
    )
    assert found["ami"] == pytest.approx(
        sklearn.metrics.adjusted_mutual_info_score(labels, clusters), rel=0.1
    )
