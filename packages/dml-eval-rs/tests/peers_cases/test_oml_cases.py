"""The cases of open-metric-learning's retrieval metrics.

OML-Team/open-metric-learning 6be182e2, tests/test_oml/test_functional/test_metrics/, tests/test_oml/test_metrics/
test_embedding_metrics.py and tests/test_integrations/test_retrieval_validation.py. OML's precision@k divides by
min(k, R) where ours divides by k, and its map@k by the matches among the first k where ours divides by min(k, R).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support.rankings import evaluate_ranks, evaluate_scores, listed

from dml_eval_rs import Evaluation, Labels, Relevance, evaluate, verify

KS = (1, 2, 3, 4, 5, 10)


FIRST: dict[str, Any] = {"similarity": "euclidean", "ties": "pessimistic", "metrics": "recall@1"}


def omls(found: Evaluation, numbers: np.ndarray, items: int, k: int) -> dict[str, np.ndarray]:
    """Return their cmc, precision and map of every query from ours, given R and the number of retrieved items."""
    hits = found.per_query[f"precision@{k}"] * k
    precisions = found.per_query[f"map@{k}"] * np.minimum(k, numbers)
    return {
        "cmc": found.per_query[f"recall@{k}"],
        "precision": hits / np.minimum(numbers, min(k, items)),
        "map": np.divide(precisions, hits, out=np.zeros(len(hits)), where=hits > 0),
    }


def at_every_k(ranks: list[list[int]], items: int, ks: tuple[int, ...] = KS) -> Evaluation:
    metrics = [f"{name}@{k}" for name in ("recall", "precision", "map") for k in ks]
    return evaluate_ranks(ranks, items, metrics=metrics)


def test_the_exact_case() -> None:
    """`exact_test_case`: six items, each a query of the five others, with the places of its matches."""
    positions = [[0, 1, 3], [0, 3, 4], [1, 2, 4], [2, 3, 4], [0], [3]]
    found = at_every_k([[place + 1 for place in places] for places in positions], 5)
    numbers = np.array([3, 3, 3, 3, 1, 1])
    figures = {
        1: ([1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0]),
        2: ([1, 1, 1, 0, 1, 0], [1, 0.5, 0.5, 0, 1, 0], [1, 1, 1 / 2, 0, 1, 0]),
        3: ([1, 1, 1, 1, 1, 0], [2 / 3, 1 / 3, 2 / 3, 1 / 3, 1, 0], [1, 1, 7 / 12, 1 / 3, 1, 0]),
        4: ([1] * 6, [1, 2 / 3, 2 / 3, 2 / 3, 1, 1], [11 / 12, 3 / 4, 7 / 12, 5 / 12, 1, 1 / 4]),
        5: ([1] * 6, [1] * 6, [11 / 12, 21 / 30, 53 / 90, 43 / 90, 1, 1 / 4]),
        10: ([1] * 6, [1] * 6, [11 / 12, 21 / 30, 53 / 90, 43 / 90, 1, 1 / 4]),
    }
    for k, of_k in figures.items():
        for (name, ours), expected in zip(omls(found, numbers, 5, k).items(), of_k):
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12, err_msg=f"{name}@{k}")


def test_categories() -> None:
    """`test_categories_in_metrics`: three items are retrieved; what is not comes far behind."""
    found = at_every_k([[1, 3, 90], [1, 90], [1, 90]], 100)
    ours = omls(found, np.array([3, 2, 2]), 3, 3)
    assert found["recall@1"] == 1
    assert ours["precision"].tolist() == [2 / 3, 1 / 2, 1 / 2]
    by_category = found.per_class("recall@1", np.array(["cat", "dog", "dog"]))
    assert by_category == {"cat": 1, "dog": 1}


def test_empty_predictions_of_a_query_without_matches_are_a_miss_here() -> None:
    """`test_empty_predictions`.

    With nothing retrieved, theirs gives 1 to a query without matches. Ours gives 0, or skips it.
    """
    ranks: list[list[int]] = [[90], [], [90, 91]]
    found = evaluate_ranks(ranks, 100, metrics=("recall@3", "precision@2", "map@1"))
    for values in found.per_query.values():
        assert values.tolist() == [0, 0, 0]  # theirs: 0, 1, 0
    skipped = evaluate_ranks(ranks, 100, metrics="recall@3", unmatched="skip")
    assert np.isnan(skipped.per_query["recall@3"]).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("distances", "matches", "k", "figure"),
    [
        ([[1, 2], [2, 1]], [[0, 1], [1, 0]], 1, 0.0),
        ([[0, 0.5], [0, 0.5]], [[0, 1], [1, 0]], 1, 0.5),
        ([[0, 0.5], [0, 0.5]], [[0, 1], [1, 0]], 2, 1.0),
        ([[1, 0.5, 0.2], [2, 3, 4], [0.4, 3, 4]], np.eye(3), 2, 1 / 3),
        (np.random.default_rng(0).normal(size=(10, 10)), np.ones((10, 10)), 1, 1.0),
    ],
    ids=["wrong", "half", "both", "third", "all match"],
)
def test_cmc_of_distances(distances: Any, matches: Any, k: int, figure: float) -> None:
    """test_cmc_metric_old.py, `test_metric_count`."""
    found = evaluate_scores(-np.asarray(distances, float), matches, metrics=f"recall@{k}")
    assert found[f"recall@{k}"] == pytest.approx(figure, abs=1e-12)


# Queries and gallery, whose items match, whose pairs are available, and the figure.
MASKED: list[tuple[Any, ...]] = [
    (
        [[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 1]], [[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 0]],
        [[1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 1, 1]], [[0, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]], 0.75,
    ),
    (
        [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], [[0, 1, 0], [0, 0, 1], [1, 0, 1]],
        [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0]], 0.25,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("queries", "gallery", "matches", "available", "figure"), MASKED)
def test_masked_cmc(queries: Any, gallery: Any, matches: Any, available: Any, figure: float) -> None:
    """`test_masked_cmc_score`: pairs that are not available are ignored."""
    relevance = Relevance(*listed(matches)[:2], ignored=listed(1 - np.array(available))[:2])
    sides = np.array(queries, np.float32), relevance, np.array(gallery, np.float32)
    found = evaluate(*sides, similarity="euclidean", metrics="recall@1", unmatched="zero")
    assert found["recall@1"] == figure


def test_sequences_and_own_items_are_ignored() -> None:
    """`calc_mask_to_ignore` excludes the query itself and all items of its sequence, of whatever label: lists, not
    groups.
    """
    rng = np.random.default_rng(0)
    x, labels, sequences = rng.normal(size=(60, 4)), np.arange(60) % 5, rng.integers(0, 6, 60)
    mask = np.eye(60, dtype=bool) | (sequences[:, None] == sequences)
    options: dict[str, Any] = {"similarity": "euclidean", "metrics": ("recall@1", "recall@5")}
    found = evaluate(x, Labels(labels, ignored=listed(mask)[:2]), **options)
    distances = ((x[:, None] - x) ** 2).sum(-1)
    distances[mask] = np.inf
    hits = (labels[np.argsort(distances, axis=1)] == labels[:, None]) & (np.sort(distances, axis=1) < np.inf)
    for k in (1, 5):
        assert found[f"recall@{k}"] == hits[:, :k].any(axis=1).mean()
    grouped = evaluate(x, Labels(labels, sequences), **options)
    assert dict(grouped) != dict(found)  # groups exclude only items of the same label


@pytest.mark.parametrize(
    ("numbers", "figure", "by_category"),
    [
        ([0, 1, 1, 0, 1, 1], 1.0, {10: 1, 20: 1}),
        ([0, 1, 3, 0, 1, 1], 2 / 3, {10: 1, 20: 0.5}),
        ([1, 0, 0, 0, 1, 1], 0.0, {10: 0, 20: 0}),
    ],
    ids=["perfect", "imperfect", "worst"],
)
def test_one_hot_embeddings(numbers: list[int], figure: float, by_category: dict[int, float]) -> None:
    """test_embedding_metrics.py, `test_perfect_case` to `test_worst_case`: the last three items are the gallery."""
    x, labels = np.eye(8, dtype=np.float32)[numbers], np.array([0, 1, 1, 0, 1, 1])
    # In the imperfect case all items are equally far from a query; theirs counts a miss.
    found = evaluate(x[:3], labels[:3], x[3:], labels[3:], **FIRST)
    assert found["recall@1"] == pytest.approx(figure, abs=1e-12)
    assert found.per_class("recall@1", np.array([10, 20, 20])) == by_category


def test_worst_queries_and_all_metrics_of_the_perfect_case() -> None:
    """`test_worst_k` and `test_all_requested_metrics_are_calculated`, without the principal components."""
    labels = np.array([0, 1, 2, 0, 1, 2])
    x = np.eye(8)[[0, 1, 2, 0, 5, 5]]
    found = evaluate(x[:3], labels[:3], x[3:], labels[3:], **FIRST)
    assert set(np.argsort(found.per_query["recall@1"], kind="stable")[:2].tolist()) == {1, 2}
    labels = np.array([0, 1, 1, 0, 1, 1])
    x = np.eye(8)[labels]
    perfect = evaluate(x[:3], labels[:3], x[3:], labels[3:], metrics=("precision@2", "map@4", "map@500"))
    ours = omls(at_every_k([[1], [1, 2], [1, 2]], 3), np.array([1, 2, 2]), 3, 2)
    assert ours["precision"].tolist() == [1, 1, 1]
    assert perfect.per_query["precision@2"].tolist() == [0.5, 1, 1]  # divided by 2, not by min(2, R)
    assert (perfect["map@4"], perfect["map@500"]) == (1, 1)
    rates = verify(x[:3], labels[:3], x[3:], labels[3:], metrics=("tar@far=0.3", "tar@far=0.5"))
    assert dict(rates) == {"tar@far=0.3": 1, "tar@far=0.5": 1}  # FNMR@FMR is 0


def test_validation_of_a_separate_and_a_shared_gallery() -> None:
    """test_retrieval_validation.py: embeddings are the labels, some of them wrong."""
    labels = np.array([0, 0, 1, 1, 2, 2, 2, 2, 1])
    in_gallery = np.array([0, 1, 0, 1, 0, 0, 1, 1, 0], bool)
    x = labels.astype(np.float32)[:, None]
    x[4:6] = 0
    found = evaluate(
        x[~in_gallery], labels[~in_gallery], x[in_gallery], labels[in_gallery], similarity="euclidean"
    )
    assert found["recall@1"] == pytest.approx(3 / 5, abs=1e-12)
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    x = labels.astype(np.float32)[:, None]
    x[0] = 3
    assert evaluate(x, labels, similarity="euclidean")["recall@1"] == 7 / 8


def test_fnmr_at_fmr_is_1_less_tar_at_far() -> None:
    """`test_calc_fnmr_at_fmr` and `test_calc_fnmr_at_fmr_rr`: the FMR is FAR, with distances as thresholds."""
    positive, negative = [0, 0, 1, 1, 2, 2, 5, 5, 9, 9], [3, 3, 4, 4, 6, 6, 7, 7, 8, 8]
    distances = -np.array([positive + negative], float).T
    labels = [1] * 10 + [0] * 10
    metrics = ("tar@far=0.1", "tar@far=0.5")
    found = verify(np.ones((1, 1)), [1], distances, labels, similarity="dot", metrics=metrics)
    assert [1 - rate for rate in found.values()] == pytest.approx([0.4, 0.2], abs=1e-12)
