"""The recall of an approximate index against the slow reference."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_support import retrieval_reference as reference
from eval_support.small_rows import small_rows
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import Interval, index_recall, knn

KERNELS = _native.kernels()
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


def expected_recall(
    found: Any, queries: Any, gallery: Any, k: int, similarity: str, exclude_self: bool
) -> Any:
    values = []
    for q, row in enumerate(found):
        keys = reference.keys_of(queries[q], gallery, similarity)
        others = [i for i in range(len(gallery)) if not (exclude_self and i == q)]
        threshold = sorted((keys[i] for i in others), reverse=True)[k - 1]
        first = [i for i in row if not (exclude_self and i == q)][:k]
        values.append(float(Fraction(sum(i >= 0 and keys[i] >= threshold for i in first), k)))
    return values


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_recall_is_that_of_a_full_sort(similarity: str, data: Any) -> None:
    dim = data.draw(st.sampled_from([1, 2, 3, 9]))
    queries, exclude_self = data.draw(small_rows(dim, similarity=similarity)), data.draw(st.booleans())
    gallery = (
        None
        if data.draw(st.booleans()) or exclude_self
        else data.draw(small_rows(dim, similarity=similarity))
    )
    items = queries if gallery is None else gallery
    k = data.draw(st.integers(1, len(items) - exclude_self))
    width = k + data.draw(st.integers(0, 2))
    # An index returns any items, each once, and none where it has no more.
    ids = [*range(len(items)), *[-1] * width]
    rows = [data.draw(st.permutations(ids).map(lambda row: row[:width])) for _ in queries]
    options: dict[str, Any] = {
        "similarity": similarity,
        "exclude_self": exclude_self,
        "threads": data.draw(st.integers(1, 2)),
    }
    screen = data.draw(st.sampled_from(["float32", "16-bit"]))
    expected = expected_recall(rows, queries, items, k, similarity, exclude_self)
    for kernel in KERNELS:
        with trial(kernel=kernel, screen=screen):
            per_query, mean = _native.index_recall(np.array(rows, np.int64), queries, gallery, k, **options)
        assert per_query.tolist() == expected, kernel
        assert mean == pytest.approx(per_query.mean(), abs=1e-15)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_exact_neighbours_have_a_recall_of_one(similarity: Any, dtype: type) -> None:
    rng = np.random.default_rng(1)
    # Codes of many bits have few ties.
    codes = np.packbits(rng.random((300, 4000)) < 0.5, axis=1)
    x = codes if similarity == "hamming" else rng.normal(size=(300, 7)).astype(dtype)
    for exclude_self in (False, True):
        _, indices = knn(x, None, 9, similarity=similarity, exclude_self=exclude_self)
        options: Any = {"similarity": similarity, "exclude_self": exclude_self}
        assert index_recall(indices, x, None, 9, **options).recall == 1.0
        wrong = indices.copy()
        wrong[:, 4] = [min(set(range(300)) - {*row, q}) for q, row in enumerate(indices.tolist())]
        assert set(index_recall(wrong, x, None, 9, **options).per_query) == {8 / 9}


def test_items_tied_with_the_last_neighbour_are_right() -> None:
    gallery = np.array([[2.0, 0], [1, 1], [3, 3], [5, 5], [0, 1]])
    found = [[0, 3], [0, 1], [0, 4], [3, 2], [-1, 0]]
    measured = index_recall(found, np.repeat([[2.0, 1]], 5, 0), gallery, 2)
    # 1, 2 and 3 are the nearest alike; 0 comes before 4.
    assert measured.per_query.tolist() == [0.5, 0.5, 0.0, 1.0, 0.0]


def test_a_query_skips_itself_and_the_next_item_moves_up() -> None:
    _, indices = knn(X, None, 6)
    assert (indices[:, 0] == np.arange(40)).all()
    assert index_recall(indices, X, None, 5, exclude_self=True).recall == 1.0
    # Without a sixth column the query's own place is lost.
    assert index_recall(indices[:, :5], X, None, 5, exclude_self=True).recall == pytest.approx(0.8, abs=1e-15)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_indices_of_any_integer_type_are_read(dtype: type) -> None:
    found = np.array([[0, 1], [1, -1]]).astype(dtype)
    assert index_recall(found, X[:2], None, 2).per_query.tolist() == [1.0, 0.5]


def test_the_interval_holds_the_mean() -> None:
    found = np.stack([np.arange(40), np.roll(np.arange(40), 1)], 1)
    measured = index_recall(found, X, None, 2)
    interval = measured.confidence_interval()
    assert isinstance(interval, Interval)
    assert interval.low <= measured.recall <= interval.high
    assert interval == measured.confidence_interval(0.95, 0)
    with pytest.raises(ValueError, match="level is 1"):
        measured.confidence_interval(1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: index_recall([[0, 0]] * 40, X, None, 2), ValueError, "found row 0 holds 0 twice"),
        (lambda: index_recall([[0, 40]] * 40, X, None, 2), ValueError, r"found row 0 holds 40; .* 0 to 39"),
        (lambda: index_recall([[0, -2]] * 40, X, None, 2), ValueError, "found row 0 holds -2"),
        (lambda: index_recall([[0]] * 40, X, None, 2), ValueError, r"found has shape \(40, 1\); .*\(40, 2\)"),
        (lambda: index_recall([[0, 1]], X, None, 2), ValueError, r"found has shape \(1, 2\)"),
        (lambda: index_recall([0, 1], X, None, 2), ValueError, r"found has shape \(2,\)"),
        (lambda: index_recall([[0.0, 1]] * 40, X, None, 2), TypeError, "found has dtype float64"),
        (lambda: index_recall([[0, 1]] * 40, X, None, 41), ValueError, "k is 41; expected 1 to 40"),
        (lambda: index_recall([[0, 1]] * 40, X, X[:, :3], 2), ValueError, r"gallery has shape \(40, 3\)"),
        (lambda: index_recall([[0, 1]] * 40, X, X[:9], 2, exclude_self=True), ValueError, "40 queries and 9"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_say_what_came_and_what_was_expected(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_example_with_faiss_runs() -> None:
    pytest.importorskip("faiss", reason="the example builds faiss indexes")
    page = Path(__file__).parents[3] / "docs/reference/verification.md"
    (example,) = [e for e in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "faiss" in e]
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "HNSW" in done.stdout
