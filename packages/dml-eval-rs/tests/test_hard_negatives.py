"""Hard negatives, compared with a slow, obvious reference."""

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
CODES = np.packbits(X @ RNG.normal(size=(6, 20)).astype(np.float32) > 0, axis=1)


@given(st.data())
def test_they_are_the_first_of_other_classes_below_the_bound(data: st.DataObject) -> None:
    n, dim = data.draw(st.integers(2, 14)), data.draw(st.integers(1, 4))
    similarity = data.draw(st.sampled_from(["cosine", "dot", "euclidean", "hamming"]))
    floats = [np.float16, np.float32, np.float64]
    dtype = data.draw(st.sampled_from([np.uint8] if similarity == "hamming" else floats))
    numbers = data.draw(st.lists(st.integers(-3, 3), min_size=n * dim, max_size=n * dim))
    x = np.array(numbers).astype(dtype).reshape(n, dim)
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
        options: Any = {"similarity": similarity, "threads": data.draw(st.integers(1, 2))}
        reported, found = hard_negatives(x, labels, k, below=below, margin=margin, **options)
    assert [row[row >= 0].tolist() for row in found] == expected(
        x, labels, k, similarity, below, margin
    )
    is_absent = reported == -1 if similarity == "hamming" else np.isnan(reported)
    assert (is_absent == (found < 0)).all()
    assert (reported.dtype, found.dtype) == (
        np.int32 if similarity == "hamming" else np.float32,
        np.int64,
    )
    for a in range(n):
        count = int((found[a] >= 0).sum())
        assert (found[a, :count] >= 0).all()  # -1 only fills the end of a row
        every, order = knn(x[a : a + 1], x, n, similarity=similarity)
        by_item = dict(zip(order[0].tolist(), every[0].tolist(), strict=True))
        assert reported[a, :count].tolist() == [by_item[i] for i in found[a, :count].tolist()]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e120])
def test_negatives_far_down_the_rankings_are_found_among_copies(
    similarity: Any, scale: float
) -> None:
    """Repeat all items four times, so that scores tie, and few negatives are below the hardest
    positive.
    """
    x = np.tile(X[:40].astype(np.float64), (4, 1)) * scale
    labels = np.tile(LABELS[:40], 4)
    wanted = expected(x, labels, 6, similarity, "hardest", 0.0)
    _, found = hard_negatives(x, labels, 6, below="hardest", similarity=similarity)
    assert [row[row >= 0].tolist() for row in found] == wanted
    assert sum(map(len, wanted)) > 300


@pytest.mark.parametrize("similarity", ["cosine", "hamming"])
@pytest.mark.parametrize("below", [None, "hardest", "easiest"])
def test_a_huge_class_beside_small_ones_changes_nothing(below: Any, similarity: Any) -> None:
    x = CODES if similarity == "hamming" else X
    labels = np.where(np.arange(150) < 70, 0, LABELS + 1)
    whole = hard_negatives(x, labels, 7, below=below, similarity=similarity)
    assert [row[row >= 0].tolist() for row in whole[1]] == expected(
        x, labels, 7, similarity, below, 0.0
    )
    with trial(class_table=2, table_keys=400, candidate_bytes=1, block_bytes=1):
        again = hard_negatives(x, labels, 7, below=below, similarity=similarity)
        for part, same in zip(again, whole, strict=True):
            np.testing.assert_array_equal(part, same)


def test_a_copy_of_a_positive_in_another_class_is_no_semi_hard_negative() -> None:
    x = np.array([[1, 0], [1, 1], [1, 1], [0, 1]], np.float32)
    labels = ["a", "a", "b", "b"]
    assert hard_negatives(x, labels, 1)[1].tolist() == [[2], [2], [1], [1]]
    assert hard_negatives(x, labels, 1, below="hardest")[1].tolist() == [[3], [-1], [-1], [0]]
    assert hard_negatives(x, labels, 1, below="hardest", margin=0.75)[1].tolist() == [
        [-1],
        [-1],
        [-1],
        [-1],
    ]


def test_a_margin_of_codes_is_a_number_of_bits() -> None:
    codes, labels = np.array([[0], [1], [3], [15], [255]], np.uint8), [0, 0, 1, 1, 1]

    def found(margin: float) -> Any:
        return hard_negatives(
            codes, labels, 2, below="hardest", margin=margin, similarity="hamming"
        )

    # The distance from item 0 to the positive is 1, and to the negatives 2, 4 and 8.
    assert [row.tolist() for row in (found(0)[0][0], found(0)[1][0])] == [[2, 4], [2, 3]]
    assert [row.tolist() for row in (found(1)[0][0], found(1)[1][0])] == [[4, 8], [3, 4]]
    assert [row.tolist() for row in (found(6.5)[0][0], found(6.5)[1][0])] == [[8, -1], [4, -1]]


def test_an_item_without_a_positive_has_no_bound() -> None:
    x = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    assert hard_negatives(x, [0, 1, 1], 2, below="hardest")[1].tolist() == [
        [1, 2],
        [-1, -1],
        [0, -1],
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"labels": np.zeros(150, int)}, ValueError,
         "all 150 labels are equal; expected at least two classes"),
        ({"labels": LABELS[:9]}, ValueError, r"labels has shape \(9,\); expected \(150,\)"),
        ({"labels": LABELS / 2}, TypeError, "labels has dtype float64; expected integers"),
        ({"k": 150}, ValueError, "k is 150; expected 1 to 149"),
        ({"margin": 0.1}, ValueError, "margin is 0.1 and below is None"),
        ({"margin": -1, "below": "hardest"}, ValueError, "margin is -1.0; expected at least 0"),
        ({"margin": "x", "below": "hardest"}, TypeError, "margin is a str; expected a number"),
        ({"below": "semi-hard"}, ValueError,
         "below is 'semi-hard'; expected one of 'hardest', 'easiest'"),
        ({"similarity": "l2"}, ValueError, "similarity is 'l2'"),
        ({"embeddings": X.astype(int)}, TypeError, "embeddings has dtype int64"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hard_negatives(**{"embeddings": X, "labels": LABELS, "k": 3, **arguments})
