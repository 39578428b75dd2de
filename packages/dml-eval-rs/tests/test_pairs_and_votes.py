"""The most similar pairs, and votes of neighbours, compared with slow references on data with many
ties.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from eval_support.path_data import SIZES, labels_of, rows_of, screens
from eval_support.scores_reference import score
from eval_support.small_rows import small_rows
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import knn, knn_classify, top_pairs

X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)


@given(data=st.data(), similarity=st.sampled_from(["cosine", "dot", "euclidean", "hamming"]))
def test_top_pairs_are_the_first_of_all_pairs(data: Any, similarity: Any) -> None:
    x = data.draw(small_rows(data.draw(st.sampled_from([1, 2, 9])), most=30, similarity=similarity))
    scored = [
        (-score(x[i], x[j], similarity), i, j) for i, j in itertools.combinations(range(len(x)), 2)
    ]
    n = data.draw(st.integers(1, len(scored)))
    sizes = {
        name: data.draw(st.sampled_from(SIZES[name]))
        for name in ("block_bytes", "task_row_panels", "directions")
    }
    kernel, screen = data.draw(st.sampled_from(screens()))
    with trial(kernel=kernel, screen=screen, **sizes):
        scores, pairs = top_pairs(x, n, similarity=similarity, threads=data.draw(st.integers(1, 2)))
    expected = sorted(scored)[:n]
    assert pairs.tolist() == [[i, j] for _, i, j in expected]
    sign = 1 if similarity == "hamming" else -1
    assert (
        scores.tolist()
        == np.array([sign * s for s, _, _ in expected]).astype(scores.dtype).tolist()
    )
    assert (scores.dtype, pairs.dtype) == (
        np.int32 if similarity == "hamming" else np.float32,
        np.int64,
    )


@pytest.mark.parametrize("kind", ["decaying", "duplicates"])
@pytest.mark.parametrize("n", [1, 40])
def test_top_pairs_of_many_tasks_are_those_of_all_scores(kind: str, n: int) -> None:
    x = rows_of(kind, labels_of(200), 24, 0)
    i, j = np.triu_indices(len(x), 1)
    scores = _native.pair_scores(
        x, None, np.stack([i, j], 1).astype(np.uint32), similarity="euclidean"
    )
    first = np.lexsort((j, i, -scores))[:n]
    for (kernel, screen), directions in itertools.product(screens(), (0, 16)):
        sizes = {
            "task_row_panels": 1,
            "task_column_panels": 1,
            "directions": directions,
            "block_bytes": 4000,
        }
        with trial(kernel=kernel, screen=screen, **sizes):
            found = top_pairs(x, n, similarity="euclidean")[1]
        assert found.tolist() == np.stack([i, j], 1)[first].tolist(), (kernel, screen, directions)


@given(data=st.data(), temperature=st.sampled_from([0.07, 1.0, 30.0]))
def test_the_class_with_the_largest_sum_of_weights_wins(data: Any, temperature: float) -> None:
    x = data.draw(small_rows(2, most=12))
    labels = data.draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=len(x), max_size=len(x)))
    queries = data.draw(st.one_of(st.none(), small_rows(2)))
    most = len(x) - (queries is None)
    ks = data.draw(st.lists(st.integers(1, most), min_size=1, max_size=3))
    found = knn_classify(x, labels, queries, ks, temperature=temperature)
    assert list(found) == sorted(set(ks))
    sides = (x, None) if queries is None else (queries, x)
    similarities, indices = knn(*sides, most, exclude_self=queries is None)
    for k in ks:
        for of, items, winner in zip(similarities.astype(float), indices, found[k], strict=True):
            votes: dict[str, float] = defaultdict(float)
            for s, item in zip(of[:k], items):
                votes[labels[item]] += math.exp((s - of[0]) / temperature)
            assert winner == min(votes, key=lambda label: (-votes[label], label))


def test_no_queries_have_no_labels_and_huge_weights_do_not_overflow() -> None:
    assert knn_classify(X, np.arange(30), X[:0], k=2)[2].tolist() == []
    assert knn_classify(X, np.arange(30), X, k=1, temperature=1e-6)[1].tolist() == list(range(30))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_pairs(X, 436), "n is 436; expected 1 to 435, the number of pairs of 30 items"),
        (lambda: top_pairs(X[:1], 1), "n is 1; expected 1 to 0"),
        (lambda: top_pairs(X, 0), "n is 0; expected at least 1"),
        (lambda: knn_classify(X, np.arange(30), k=30), "k is 30; expected 1 to 29"),
        (lambda: knn_classify(X, np.arange(30), k=()), "k is empty; expected at least one"),
        (
            lambda: knn_classify(X, np.arange(30), temperature=0),
            "temperature is 0.0; expected a number above 0",
        ),
        (lambda: knn_classify(X, np.arange(9)), r"labels has shape \(9,\); expected \(30,\)"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
