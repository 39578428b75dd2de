"""Re-ranking and query expansion, compared with slow, dense references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support import reranking_reference as reference
from eval_support.retrieval_reference import metric_of_order
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import Labels, Relevance, expand_queries, knn, rerank, reranking
from dml_eval_rs.evaluators import Evaluator
from dml_eval_rs.matches.matching import Matching

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 12
X = (RNG.normal(size=(12, 5))[LABELS] + RNG.normal(size=(60, 5))).astype(np.float32)
# Sums of float32 values, which are at most 2, are compared with float64.
TOLERANCE = 2e-6


@st.composite
def sides(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray | None]:
    """Draw small integers, so that items tie and coincide, or generic numbers."""
    n, dim, searched = draw(st.integers(3, 16)), draw(st.integers(1, 4)), draw(st.integers(0, 2))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    numbers = draw(st.lists(st.integers(-2, 2), min_size=n * dim, max_size=n * dim))
    noise = draw(st.integers(0, 1)) * np.random.default_rng(draw(st.integers(0, 99))).uniform(
        size=n * dim
    )
    rows = (np.array(numbers) + noise).astype(dtype).reshape(n, dim)
    rows[~rows.any(axis=1)] = 1
    return (rows, None) if searched == 0 else (rows[: n // 2], rows[n // 2 :])


@given(st.data())
def test_distances_are_those_of_the_dense_definition(data: st.DataObject) -> None:
    queries, gallery = data.draw(sides())
    n = len(queries) + (0 if gallery is None else len(gallery))
    k1, k2 = data.draw(st.integers(1, n - 1)), data.draw(st.integers(1, n))
    weight = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    similarity: Any = data.draw(st.sampled_from(["cosine", "euclidean"]))
    expected = reference.rerank(queries, gallery, k1, k2, weight, similarity)
    if gallery is None:
        np.fill_diagonal(expected, np.inf)
    k = data.draw(st.integers(1, expected.shape[1] - (gallery is None)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reranking, "_BLOCK", data.draw(st.sampled_from([1, 40, 1 << 22])))
        distances, indices = rerank(queries, gallery, k, k1, k2, weight, similarity=similarity)
    assert (distances.dtype, indices.dtype, indices.shape) == (
        np.float32,
        np.int64,
        (len(queries), k),
    )
    assert all(len(set(row)) == k for row in indices.tolist())
    np.testing.assert_allclose(distances, np.take_along_axis(expected, indices, 1), atol=TOLERANCE)
    np.testing.assert_allclose(distances, np.sort(expected, axis=1)[:, :k], atol=TOLERANCE)
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.parametrize("k", [5, 59])
def test_equal_distances_keep_the_order_of_knn(k: int) -> None:
    """If `k1` is 1 and the weight is 0, most items share no neighbour with a query, so the distance
    is 1.
    """
    distances, indices = rerank(X, None, k, k1=1, k2=1, weight=0)
    nearest = knn(X, None, k, exclude_self=True)[1]
    assert (distances[:, 1:] == 1).all()
    np.testing.assert_array_equal(indices, nearest)


@given(sides(), st.data())
def test_expanded_queries_are_those_of_the_definition(
    given: tuple[np.ndarray, np.ndarray | None], data: st.DataObject
) -> None:
    queries, gallery = given
    k = data.draw(st.integers(1, len(queries) - 1 if gallery is None else len(gallery)))
    alpha = data.draw(st.sampled_from([0, 1, 3.0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reranking, "_BLOCK", data.draw(st.sampled_from([1, 1 << 22])))
        found = expand_queries(queries, gallery, k, alpha)
    assert found.dtype == np.float32
    # Cosines are rounded to float32 before they are raised to a power; nearly opposite vectors
    # amplify this.
    np.testing.assert_allclose(
        found, reference.expand_queries(queries, gallery, k, alpha), atol=1e-4
    )


def test_both_bring_matches_forward() -> None:
    labels, rng = np.arange(160) % 20, np.random.default_rng(0)
    x = rng.normal(size=(20, 16))[labels] + 0.9 * rng.normal(size=(160, 16))
    evaluator = Evaluator(metrics=["map"])
    plain = evaluator.evaluate(x, labels)["map"]
    assert evaluator.evaluate_reranked(x, labels, k1=8, k2=3)["map"] > plain + 0.05
    assert evaluator.evaluate(evaluator.expand(x, k=5), labels)["map"] > plain + 0.05


LISTS = Relevance(
    *[np.arange(61) * 2, np.sort((np.arange(60)[:, None] + [7, 21]) % 60, axis=1).ravel()]
)
GRADED = Relevance(LISTS.offsets, LISTS.indices, np.arange(120) % 3)
SIDES: dict[str, tuple[Any, ...]] = {
    "labels": (X, LABELS),
    "a gallery": (X[:20], LABELS[:20], X[20:], LABELS[20:]),
    "groups": (X, Labels(LABELS, np.arange(60) // 25)),
    "a gallery with groups and junk": (
        X[:20], Labels(LABELS[:20], LABELS[:20] % 2), X[20:],
        Labels(LABELS[20:], LABELS[20:] // 6, junk=[0, 3])
    ),
    "junk and a class of one": (X[:50],
        Labels(np.minimum(LABELS[:50] + 40 * (np.arange(50) == 7), 30), junk=5)),
    "ignored": (X, Labels(LABELS, ignored=(np.arange(61), np.roll(np.arange(60), 12)))),
    "lists": (X, LISTS),
    "grades": (X, GRADED),
}  # fmt: skip


@pytest.mark.parametrize("name", SIDES)
def test_metrics_are_of_the_reranked_order(name: str) -> None:
    x, labels, *gallery = SIDES[name]
    names = [
        "recall@2",
        "precision@3",
        "r_precision",
        "map@r",
        "mrr@4",
        "map@5",
        "ndcg@6",
        "ir_recall@2",
    ]
    whole = [*names, "map", "mrr", "minp"]
    options: Any = {"k1": 6, "k2": 3, "weight": 0.2}
    rows = gallery[0] if gallery else x
    indices = rerank(x, *(gallery[:1] or [None]), len(rows) - (not gallery), **options)[1]
    matching = Matching(labels, *(gallery[1:] or [None]), len(rows) if gallery else None)
    query = np.arange(len(x))
    gains = matching.matches(query, indices).astype(float)
    if name == "grades":
        grade = np.zeros((60, 60))
        grade[np.repeat(np.arange(60), np.diff(GRADED.offsets).astype(int)), GRADED.indices] = (
            GRADED.grades
        )
        gains = np.take_along_axis(grade, indices, 1)
    kept = ~matching.excludes(query, indices)
    for unmatched in ("skip", "zero"):
        for asked in (names, whole):
            evaluator = Evaluator(metrics=asked, unmatched=unmatched)  # type: ignore[arg-type]
            found = evaluator.evaluate_reranked(x, labels, *gallery, **options)
            for q in range(len(x)):
                order = gains[q][kept[q]].tolist()
                for metric in asked:
                    value = found.per_query[metric][q]
                    if not matching.has_match()[q]:
                        assert value == 0 if unmatched == "zero" else np.isnan(value)
                    else:
                        assert value == pytest.approx(
                            float(metric_of_order(metric, order)), abs=1e-12
                        )
    assert found.n_gallery == len(rows)


def test_metrics_of_clusters_and_pairs_are_left_out() -> None:
    evaluator = Evaluator(metrics=["nmi", "recall@1", "tar@far=0.1"], n_clusters=3)
    found = evaluator.evaluate_reranked(X, LABELS)
    assert dict(found) == dict(Evaluator(metrics=["recall@1"]).evaluate_reranked(X, LABELS))


BAD: list[tuple[Any, str]] = [
    (lambda: rerank(X, None, 60), "k is 60; expected 1 to 59"),
    (lambda: rerank(X, None, 5, k1=60), "k1 is 60; expected 1 to 59 for 60 items"),
    (lambda: rerank(X[:9], X, 5, k2=70), "k2 is 70; expected 1 to 69 for 69 items"),
    (lambda: rerank(X, None, 5, weight=1.5), r"weight is 1.5; expected 0 to 1"),
    (lambda: rerank(X, None, 5, weight=float("nan")), "weight is nan; expected a finite number"),
    (lambda: rerank(X, None, 5, similarity="dot"),
     "similarity is 'dot'; expected one of 'cosine', 'euclidean'"),  # type: ignore[arg-type]
    (lambda: rerank(X * 0, None, 5), "row 0"),
    (lambda: expand_queries(X, alpha=-1), "alpha is -1.0; expected at least 0"),
    (lambda: expand_queries(X, k=60), "k is 60; expected 1 to 59"),
    (lambda: Evaluator(similarity="dot").evaluate_reranked(X, LABELS), "similarity is 'dot'"),
    (lambda: Evaluator().evaluate_reranked(X, np.arange(60)), "none of the 60 queries has a match"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_arguments_are_explained(number: int) -> None:
    call, message = BAD[number]
    with pytest.raises(ValueError, match=message):
        call()
