"""Hard negatives against a slow, obvious reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support.mining_reference import hard_negatives as expected
from eval_support.path_data import SIZES, screens
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import hard_negatives, knn

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 12, 150)
X = (RNG.normal(size=(12, 6))[LABELS] + RNG.normal(size=(150, 6))).astype(np.float32)


@given(st.data())
def test_they_are_the_first_of_other_classes_below_the_bound(data: st.DataObject) -> None:
    n, dim = data.draw(st.integers(2, 14)), data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
    numbers = data.draw(st.lists(st.integers(-3, 3), min_size=n * dim, max_size=n * dim))
    x = np.array(numbers, dtype).reshape(n, dim)
    similarity = data.draw(st.sampled_from(["cosine", "dot", "euclidean"]))
    if similarity == "cosine":
        x[~x.any(axis=1)] = 1
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    labels[:2] = 0, 1
    below: Any = data.draw(st.sampled_from([None, "hardest", "easiest"]))
    margin = data.draw(st.sampled_from([0.0, 0.25, 1.0])) if below else 0.0
    k = data.draw(st.integers(1, n - 1))
    kernel, screen = data.draw(st.sampled_from(screens()))
    sizes = {
        name: data.draw(st.sampled_from(SIZES[name]))
        for name in ("class_table", "table_keys", "guess_spacing")
    }
    with trial(kernel=kernel, screen=screen, **sizes):
        similarities, found = hard_negatives(
            x,
            labels,
            k,
            below=below,
            margin=margin,
            similarity=similarity,
            threads=data.draw(st.integers(1, 2)),
        )
    assert [row[row >= 0].tolist() for row in found] == expected(x, labels, k, similarity, below, margin)
    assert (np.isnan(similarities) == (found < 0)).all()
    assert (similarities.dtype, found.dtype) == (np.float32, np.int64)
    for a in range(n):
        count = int((found[a] >= 0).sum())
        assert (found[a, :count] >= 0).all()  # no gap
        every, order = knn(x[a : a + 1], x, n, similarity=similarity)
        by_item = dict(zip(order[0].tolist(), every[0].tolist(), strict=True))
        assert similarities[a, :count].tolist() == [by_item[i] for i in found[a, :count].tolist()]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e120])
def test_negatives_far_down_the_rankings_are_found_among_copies(similarity: Any, scale: float) -> None:
    """With every item four times, many scores are equal, and few negatives are below the hardest positive."""
    x = np.tile(X[:40].astype(np.float64), (4, 1)) * scale
    labels = np.tile(LABELS[:40], 4)
    wanted = expected(x, labels, 6, similarity, "hardest", 0.0)
    _, found = hard_negatives(x, labels, 6, below="hardest", similarity=similarity)
    assert [row[row >= 0].tolist() for row in found] == wanted
    assert sum(map(len, wanted)) > 300


@pytest.mark.parametrize("below", [None, "hardest", "easiest"])
def test_a_huge_class_beside_small_ones_changes_nothing(below: Any) -> None:
    labels = np.where(np.arange(150) < 70, 0, LABELS + 1)
    whole = hard_negatives(X, labels, 7, below=below)
    assert [row[row >= 0].tolist() for row in whole[1]] == expected(X, labels, 7, "cosine", below, 0.0)
    with trial(class_table=2, table_keys=400, candidate_bytes=1, block_bytes=1):
        for part, same in zip(hard_negatives(X, labels, 7, below=below), whole, strict=True):
            np.testing.assert_array_equal(part, same)


def test_a_copy_of_a_positive_in_another_class_is_no_semi_hard_negative() -> None:
    x = np.array([[1, 0], [1, 1], [1, 1], [0, 1]], np.float32)
    labels = ["a", "a", "b", "b"]
    assert hard_negatives(x, labels, 1)[1].tolist() == [[2], [2], [1], [1]]
    assert hard_negatives(x, labels, 1, below="hardest")[1].tolist() == [[3], [-1], [-1], [0]]
    assert hard_negatives(x, labels, 1, below="hardest", margin=0.75)[1].tolist() == [[-1], [-1], [-1], [-1]]


def test_an_item_without_a_positive_has_no_bound() -> None:
    x = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    assert hard_negatives(x, [0, 1, 1], 2, below="hardest")[1].tolist() == [[1, 2], [-1, -1], [0, -1]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"labels": np.zeros(150, int)},
            ValueError,
            "all 150 labels are equal; expected at least two classes",
        ),
        ({"labels": LABELS[:9]}, ValueError, r"labels has shape \(9,\); expected \(150,\)"),
        ({"labels": LABELS / 2}, TypeError, "labels has dtype float64; expected integers"),
        ({"k": 150}, ValueError, "k is 150; expected 1 to 149"),
        ({"margin": 0.1}, ValueError, "margin is 0.1 and below is None"),
        ({"margin": -1, "below": "hardest"}, ValueError, "margin is -1.0; expected a finite number"),
        ({"margin": "x", "below": "hardest"}, TypeError, "margin is 'x'; expected a number"),
        ({"below": "semi-hard"}, ValueError, "below is 'semi-hard'; expected one of 'hardest', 'easiest'"),
        ({"similarity": "l2"}, ValueError, "similarity is 'l2'"),
        ({"embeddings": X.astype(int)}, TypeError, "embeddings has dtype int64"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hard_negatives(**{"embeddings": X, "labels": LABELS, "k": 3, **arguments})
