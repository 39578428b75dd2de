"""Searches within a threshold, and the recall of an approximate index, compared with slow
references.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from eval_support import retrieval_reference as reference
from eval_support.scores_reference import score
from eval_support.small_rows import small_rows
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import Interval, index_recall, knn, range_search

KERNELS = _native.kernels()
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
CODES = np.packbits(np.random.default_rng(0).random((40, 16)) < 0.3, axis=1)


def expected_ranges(
    queries: Any, gallery: Any, threshold: float, similarity: str, exclude_self: bool
) -> Any:
    """Compare all pairs; the distance of codes (the negated score) must not exceed the
    threshold.
    """
    offsets, indices, scores = [0], [], []
    sign = -1 if similarity == "hamming" else 1
    for q, query in enumerate(queries):
        of_query = [score(query, item, similarity) for item in gallery]
        accepted = [
            g
            for g, s in enumerate(of_query)
            if s >= sign * threshold and not (exclude_self and g == q)
        ]
        accepted.sort(key=lambda g: (-of_query[g], g))
        indices += accepted
        scores += [sign * of_query[g] for g in accepted]
        offsets.append(len(indices))
    return offsets, indices, np.array(scores, np.float32).tolist()


def dtypes(similarity: str) -> list[type]:
    return [np.int64, np.int64, np.int32 if similarity == "hamming" else np.float32]


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(data=st.data())
def test_ranges_are_those_of_all_scores(similarity: str, data: Any) -> None:
    dim = data.draw(st.sampled_from([1, 2, 3, 9]))
    queries, exclude_self = (
        data.draw(small_rows(dim, similarity=similarity)),
        data.draw(st.booleans()),
    )
    own = data.draw(st.booleans())
    gallery = (
        None
        if own
        else queries.copy()
        if exclude_self
        else data.draw(small_rows(dim, similarity=similarity))
    )
    items = queries if gallery is None else gallery
    # Thresholds can be scores of pairs, adjacent numbers, or any numbers.
    some = score(
        data.draw(st.sampled_from(list(queries))),
        data.draw(st.sampled_from(list(items))),
        similarity,
    )
    some = -some if similarity == "hamming" else some
    threshold = data.draw(
        st.one_of(
            st.sampled_from([some, np.nextafter(some, -np.inf), np.nextafter(some, np.inf)]),
            st.floats(-3, 3),
            st.sampled_from([-1e308, 1e308]),
        )
    )
    options: dict[str, Any] = {
        "similarity": similarity,
        "exclude_self": exclude_self,
        "max_results": 2**62,
        "threads": data.draw(st.integers(1, 2)),
    }
    screen = data.draw(st.sampled_from(["float32", "16-bit"]))
    expected = expected_ranges(queries, items, float(threshold), similarity, exclude_self)
    for kernel in KERNELS:
        with trial(kernel=kernel, screen=screen):
            found = _native.range_search(queries, gallery, float(threshold), **options)
        assert tuple(part.tolist() for part in found) == expected, kernel
        assert [part.dtype for part in found] == dtypes(similarity)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ranges_of_every_kernel_screen_and_thread_count_gives_the_same_bits(
    similarity: str, dtype: type
) -> None:
    rng = np.random.default_rng(1)
    x = (
        rng.normal(size=(90, 11))[rng.integers(0, 90, 1500)] + 0.1 * rng.normal(size=(1500, 11))
    ).astype(dtype)
    if similarity == "hamming":
        x = np.packbits(x @ rng.normal(size=(11, 52)).astype(dtype) > 0, axis=1)
    threshold = {"cosine": 0.97, "dot": 8.0, "euclidean": -0.2, "hamming": 2.0}[similarity]
    results = set()
    options: Any = {"similarity": similarity, "exclude_self": True, "max_results": 2**62}
    screens = ("float32", "16-bit")
    for kernel, screen, threads, gallery in itertools.product(
        KERNELS, screens, (1, 2, 3), (None, x)
    ):
        with trial(kernel=kernel, screen=screen):
            found = _native.range_search(x, gallery, threshold, threads=threads, **options)
        results.add(b"".join(part.tobytes() for part in found))
    assert len(results) == 1
    sample = range_search(x[:20], x, threshold, similarity=similarity)  # type: ignore[arg-type]
    assert tuple(part.tolist() for part in sample) == expected_ranges(
        x[:20], x, threshold, similarity, False
    )
    assert len(sample[1]) > 100


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_ranges_agree_with_knn(similarity: Any) -> None:
    x = CODES if similarity == "hamming" else X
    scores, indices = knn(x, None, 40, similarity=similarity)
    threshold = float(np.median(scores)) + 1e-9
    offsets, found, reported = range_search(x, None, threshold, similarity=similarity)
    accepted = scores <= threshold if similarity == "hamming" else scores >= threshold
    for q in range(40):
        mine = slice(offsets[q], offsets[q + 1])
        assert found[mine].tolist() == indices[q][accepted[q]].tolist()
        np.testing.assert_allclose(reported[mine], scores[q][accepted[q]], rtol=3e-7)


def test_an_item_is_found_for_another_if_and_only_if_the_reverse() -> None:
    x = np.random.default_rng(2).integers(-3, 4, (200, 5)) + 0.5
    for gallery in (None, x):
        offsets, indices, _ = range_search(x, gallery, score(x[3], x[7], "cosine"))
        pairs = {(q, int(g)) for q in range(200) for g in indices[offsets[q] : offsets[q + 1]]}
        assert pairs == {(g, q) for q, g in pairs}
        assert (3, 7) in pairs


def test_no_queries_and_no_results_give_empty_arrays() -> None:
    for x, similarity in ((X, "cosine"), (CODES, "hamming")):
        threshold = {"cosine": 2.0, "hamming": -1}[similarity]
        options: Any = {"similarity": similarity}
        none, strict = (
            range_search(x[:0], x, 0.5, **options),
            range_search(x, None, threshold, **options),
        )
        for found, queries in ((none, 0), (strict, 40)):
            assert [part.tolist() for part in found] == [[0] * (queries + 1), [], []]
            assert [part.dtype for part in found] == dtypes(similarity)


def test_as_many_results_as_allowed_are_returned() -> None:
    assert len(range_search(X, None, -1.5, max_results=1600)[1]) == 1600
    assert len(range_search(X, None, -1.5, max_results=1560, exclude_self=True)[1]) == 1560


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
    queries, exclude_self = (
        data.draw(small_rows(dim, similarity=similarity)),
        data.draw(st.booleans()),
    )
    gallery = (
        None
        if data.draw(st.booleans()) or exclude_self
        else data.draw(small_rows(dim, similarity=similarity))
    )
    items = queries if gallery is None else gallery
    k = data.draw(st.integers(1, len(items) - exclude_self))
    width = k + data.draw(st.integers(0, 2))
    # An index can return any distinct items; if there are fewer items than columns, -1 fills the
    # rest.
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
            per_query, mean = _native.index_recall(
                np.array(rows, np.int64), queries, gallery, k, **options
            )
        assert per_query.tolist() == expected, kernel
        assert mean == pytest.approx(per_query.mean(), abs=1e-15)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_exact_neighbours_have_a_recall_of_one(similarity: Any, dtype: type) -> None:
    rng = np.random.default_rng(1)
    # Long codes rarely tie.
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
    # 1, 2 and 3 are equally near and come first; 0 comes before 4.
    assert measured.per_query.tolist() == [0.5, 0.5, 0.0, 1.0, 0.0]


def test_a_query_skips_itself_and_the_next_item_moves_up() -> None:
    _, indices = knn(X, None, 6)
    assert (indices[:, 0] == np.arange(40)).all()
    assert index_recall(indices, X, None, 5, exclude_self=True).recall == 1.0
    # Without a sixth column, the query itself takes one of the five places.
    assert index_recall(indices[:, :5], X, None, 5, exclude_self=True).recall == pytest.approx(
        0.8, abs=1e-15
    )


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
        (lambda: range_search(X, X, 0.0, max_results=7), ValueError,
         r"\d+ pairs reach .* at most 7"),
        (lambda: range_search(X, None, -1.5, max_results=1599), ValueError, "1600 pairs reach"),
        (lambda: range_search(X, X, -1.5, max_results=1599), ValueError, "1600 pairs reach"),
        (lambda: range_search(X, X, float("nan")), ValueError,
         "threshold is nan; expected a finite number"),
        (lambda: range_search(X, X, "a"), TypeError,
         "threshold is a str"),  # type: ignore[arg-type]
        (lambda: range_search(X, X[:4], 0.5, exclude_self=True), ValueError,
         "40 queries and 4 gallery items"),
        (lambda: range_search(X, X, 0.5, max_results=0), ValueError, "max_results is 0"),
        (lambda: range_search(X * np.nan, None, 0.5), ValueError, "queries row 0 holds NaN"),
        (lambda: range_search(CODES, None, 16, similarity="hamming", max_results=9), ValueError,
         "1600 pairs reach"),
        (lambda: range_search(CODES, X, 3, similarity="hamming"), TypeError,
         "gallery has dtype float32"),
        (lambda: range_search(CODES, None, 3), TypeError,
         "expected similarity='hamming' for binary codes"),
        (lambda: range_search(X, X, 0.5, similarity="l2"), ValueError,
         "similarity is 'l2'"),  # type: ignore[arg-type]
        (lambda: index_recall([[0, 0]] * 40, X, None, 2), ValueError,
         "found row 0 contains 0 twice"),
        (lambda: index_recall([[0, 40]] * 40, X, None, 2), ValueError,
         r"found row 0 contains 40; .* 0 to 39"),
        (lambda: index_recall([[0, -2]] * 40, X, None, 2), ValueError, "found row 0 contains -2"),
        (lambda: index_recall([[0]] * 40, X, None, 2), ValueError,
         r"found has shape \(40, 1\); .*\(40, 2\)"),
        (lambda: index_recall([[0, 1]], X, None, 2), ValueError, r"found has shape \(1, 2\)"),
        (lambda: index_recall([0, 1], X, None, 2), ValueError, r"found has shape \(2,\)"),
        (lambda: index_recall([[0.0, 1]] * 40, X, None, 2), TypeError, "found has dtype float64"),
        (lambda: index_recall([[0, 1]] * 40, X, None, 41), ValueError, "k is 41; expected 1 to 40"),
        (lambda: index_recall([[0, 1]] * 40, X, X[:, :3], 2), ValueError,
         r"gallery has shape \(40, 3\)"),
        (lambda: index_recall([[0, 1]] * 40, X, X[:9], 2, exclude_self=True), ValueError,
         "40 queries and 9"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_errors_say_what_came_and_what_was_expected(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
