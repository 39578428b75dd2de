"""Searches for all items within a threshold, against the slow reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from eval_support.scores_reference import score
from eval_support.small_rows import small_rows
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import knn, range_search

KERNELS = _native.kernels()
SIMILARITIES = ("cosine", "dot", "euclidean", "hamming")
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
CODES = np.packbits(np.random.default_rng(0).random((40, 16)) < 0.3, axis=1)


def expected_ranges(queries: Any, gallery: Any, threshold: float, similarity: str, exclude_self: bool) -> Any:
    """Compare every pair; codes are within a threshold if their distance, minus the score, is at most that."""
    offsets, indices, scores = [0], [], []
    sign = -1 if similarity == "hamming" else 1
    for q, query in enumerate(queries):
        of_query = [score(query, item, similarity) for item in gallery]
        accepted = [
            g for g, s in enumerate(of_query) if s >= sign * threshold and not (exclude_self and g == q)
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
def test_results_are_those_of_all_scores(similarity: str, data: Any) -> None:
    dim = data.draw(st.sampled_from([1, 2, 3, 9]))
    queries, exclude_self = data.draw(small_rows(dim, similarity=similarity)), data.draw(st.booleans())
    own = data.draw(st.booleans())
    gallery = (
        None if own else queries.copy() if exclude_self else data.draw(small_rows(dim, similarity=similarity))
    )
    items = queries if gallery is None else gallery
    # Thresholds are scores of pairs, the numbers beside them, or anything.
    some = score(
        data.draw(st.sampled_from(list(queries))), data.draw(st.sampled_from(list(items))), similarity
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
def test_every_kernel_screen_and_thread_count_gives_the_same_bits(similarity: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(90, 11))[rng.integers(0, 90, 1500)] + 0.1 * rng.normal(size=(1500, 11))).astype(
        dtype
    )
    if similarity == "hamming":
        x = np.packbits(x @ rng.normal(size=(11, 52)).astype(dtype) > 0, axis=1)
    threshold = {"cosine": 0.97, "dot": 8.0, "euclidean": -0.2, "hamming": 2.0}[similarity]
    results = set()
    for kernel in KERNELS:
        for screen in ("float32", "16-bit"):
            for threads in (1, 2, 3):
                for gallery in (None, x):
                    with trial(kernel=kernel, screen=screen):
                        found = _native.range_search(
                            x,
                            gallery,
                            threshold,
                            similarity=similarity,
                            exclude_self=True,
                            max_results=2**62,
                            threads=threads,
                        )
                    results.add(b"".join(part.tobytes() for part in found))
    assert len(results) == 1
    sample = range_search(x[:20], x, threshold, similarity=similarity)  # type: ignore[arg-type]
    assert tuple(part.tolist() for part in sample) == expected_ranges(x[:20], x, threshold, similarity, False)
    assert len(sample[1]) > 100


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_results_agree_with_knn(similarity: Any) -> None:
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
        none, strict = range_search(x[:0], x, 0.5, **options), range_search(x, None, threshold, **options)
        for found, queries in ((none, 0), (strict, 40)):
            assert [part.tolist() for part in found] == [[0] * (queries + 1), [], []]
            assert [part.dtype for part in found] == dtypes(similarity)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: range_search(X, X, 0.0, max_results=7), ValueError, r"\d+ pairs reach .* at most 7"),
        (lambda: range_search(X, None, -1.5, max_results=1599), ValueError, "1600 pairs reach"),
        (lambda: range_search(X, X, -1.5, max_results=1599), ValueError, "1600 pairs reach"),
        (lambda: range_search(X, X, float("nan")), ValueError, "threshold is nan; expected a finite number"),
        (lambda: range_search(X, X, "a"), TypeError, "threshold is 'a'"),  # type: ignore[arg-type]
        (
            lambda: range_search(X, X[:4], 0.5, exclude_self=True),
            ValueError,
            "40 queries and 4 gallery items",
        ),
        (lambda: range_search(X, X, 0.5, max_results=0), ValueError, "max_results is 0"),
        (lambda: range_search(X * np.nan, None, 0.5), ValueError, "queries row 0 holds NaN"),
        (
            lambda: range_search(CODES, None, 16, similarity="hamming", max_results=9),
            ValueError,
            "1600 pairs reach",
        ),
        (lambda: range_search(CODES, X, 3, similarity="hamming"), TypeError, "gallery has dtype float32"),
        (lambda: range_search(CODES, None, 3), TypeError, "use similarity='hamming'"),
        (lambda: range_search(X, X, 0.5, similarity="l2"), ValueError, "similarity is 'l2'"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_say_what_came_and_what_was_expected(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_as_many_results_as_allowed_are_returned() -> None:
    assert len(range_search(X, None, -1.5, max_results=1600)[1]) == 1600
    assert len(range_search(X, None, -1.5, max_results=1560, exclude_self=True)[1]) == 1560
