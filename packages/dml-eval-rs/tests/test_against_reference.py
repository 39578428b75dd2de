"""The evaluator, compared with the slow reference using all kernels. Small integers are used, so
that items tie.
"""

from __future__ import annotations

import itertools
import math
import platform
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from eval_support import retrieval_reference as reference
from eval_support.small_rows import integers, small_rows
from eval_support.trial import trial
from hypothesis import assume, given
from hypothesis import strategies as st

import dml_eval_rs._native as _native
from dml_eval_rs import binarize, evaluate, knn
from dml_eval_rs.inputs import arguments
from dml_eval_rs.matches.relation import Relation

KERNELS = _native.kernels()
SIMILARITIES = ("cosine", "dot", "euclidean")
TIES = ("index", "optimistic", "pessimistic", "expected")
STANDARD = [
    *(f"recall@{k}" for k in (1, 2, 3, 5, 100)),
    "precision@1",
    "r_precision",
    "map@r",
    "mrr",
]
# Metrics with and without K, where K can be larger than R or the gallery, and metrics that need all
# ranks.
MORE = st.sampled_from(
    [
        [],
        ["precision@4", "map@1", "map@3", "ndcg@1", "ndcg@3", "ir_recall@2", "mrr@2"],
        ["map@100", "ndcg@100", "precision@100"],
        ["map", "minp"],
    ]
)
# All keys are computed for queries with at least this number of matches: all queries, some, or
# none.
MANY_POSITIVES = st.sampled_from([0, 2, 3, 10**6])
# The number of directions used to screen rows; None to choose the cheapest.
DIRECTIONS = st.sampled_from([None, 0, 1, 3])

# Allow for rounding: a mean over orders of ties adds a few products, and other metrics add up to R
# quotients.
TOLERANCE = 1e-12


def count(x: Any, gallery: Any, relation: Relation, **options: Any) -> Any:
    """Call the core, which reads options from attributes."""
    defaults = {"similarity": "cosine", "ties": ["index"], "zero_unmatched": False, "threads": None}
    return _native.evaluate(
        x,
        gallery,
        [relation],
        SimpleNamespace(**{**defaults, "progress": None, "peers": None, **options}),
    )


def bits_of(found: tuple[list[tuple[str, np.ndarray, float]], int]) -> bytes:
    return b"".join(values.tobytes() for _, values, _ in found[0])


def assert_same(
    found: tuple[list[tuple[str, np.ndarray, float]], int],
    expected: dict[str, np.ndarray],
    kernel: str,
) -> None:
    columns, n_unmatched = found
    assert n_unmatched == np.isnan(expected["mrr"]).sum()
    assert [name for name, _, _ in columns] == list(expected)
    for name, values, mean in columns:
        where = f"{name}, {kernel}"
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=TOLERANCE, err_msg=where)
        np.testing.assert_allclose(
            mean, np.nanmean(expected[name]), rtol=0, atol=TOLERANCE, err_msg=where
        )


@st.composite
def problems(draw: st.DrawFn, similarity: str) -> tuple[Any, ...]:
    """Draw embeddings or codes, and labels, of queries and perhaps a gallery."""
    dim = draw(st.sampled_from([1, 3, 4, 9, 33] if similarity == "hamming" else [1, 2, 3, 9]))
    sides: list[Any] = []
    for _ in range(draw(st.integers(1, 2))):
        rows = draw(small_rows(dim, 8, similarity))
        sides += [rows, draw(integers(len(rows), 2))]
    return (*sides, None, None)[:4]


def has_matches(labels: np.ndarray, gallery_labels: np.ndarray | None) -> bool:
    if gallery_labels is None:
        return len(np.unique(labels)) < len(labels)
    return bool(np.isin(labels, gallery_labels).any())


def test_every_kernel_of_the_build_is_tried_or_named_as_missing() -> None:
    # conftest.py prints the tried and the missing kernels when the tests end.
    x86, arm = ["avx512-amx", "avx512-vnni", "avx512", "avx2-vnni", "avx2"], ["neon-bf16", "neon"]
    built = {"x86_64": x86, "AMD64": x86, "aarch64": arm, "arm64": arm, "ARM64": arm}
    expected = [*built.get(platform.machine(), []), "portable", "portable-bytes"]
    assert sorted([*KERNELS, *_native.missing_kernels()]) == sorted(expected)


# All kernels are given all examples, since the reference needs more time than all kernels.
@pytest.mark.parametrize("similarity", [*SIMILARITIES, "hamming"])
@pytest.mark.parametrize("ties", TIES)
@given(data=st.data())
def test_every_metric_is_that_of_a_full_sort(similarity: str, ties: str, data: Any) -> None:
    problem = data.draw(problems(similarity))
    embeddings, labels, gallery, gallery_labels = problem
    assume(has_matches(labels, gallery_labels))
    more = data.draw(MORE)
    expected = reference.evaluate(
        *problem, similarity=similarity, metrics=STANDARD + more, ties=ties
    )
    codes = arguments.encode(*(p for p in (labels, gallery_labels) if p is not None))
    rules = data.draw(st.sampled_from([[ties], TIES]))
    options: dict[str, Any] = {
        "similarity": similarity,
        "metrics": STANDARD + more,
        "ties": rules,
        "threads": data.draw(st.integers(1, 2)),
    }
    how: dict[str, Any] = {
        "screen": data.draw(st.sampled_from(["float32", "16-bit"])),
        "many_positives": data.draw(MANY_POSITIVES),
        "directions": data.draw(DIRECTIONS),
    }
    relation = Relation(labels=codes[0], gallery_labels=codes[1] if gallery is not None else None)
    for kernel in KERNELS:
        with trial(kernel=kernel, **how):
            found = count(embeddings, gallery, relation, **options)
        assert_same(found[rules.index(ties)], expected, kernel)


@st.composite
def doubles(draw: st.DrawFn, dim: int, exponent: int) -> np.ndarray:
    """Draw float64 rows, never all zeros, mostly of equal magnitude, but also subnormal and other
    numbers.
    """
    ordinary = st.one_of(st.integers(-2, 2).map(float), st.floats(-1, 1)).map(
        lambda v: math.ldexp(v, exponent)
    )
    anything = st.floats(-(2.0**500), 2.0**500, allow_subnormal=True)
    number = st.one_of(ordinary, ordinary, ordinary, ordinary, anything)
    return np.array(
        draw(
            st.lists(
                st.lists(number, min_size=dim, max_size=dim).filter(any), min_size=2, max_size=8
            )
        )
    )


@pytest.mark.parametrize("similarity", SIMILARITIES)
@given(
    dim=st.sampled_from([1, 2, 9]),
    # Squares underflow if numbers are below 2**-511, and are zero below 2**-537.
    exponent=st.one_of(st.integers(-1074, 499), st.integers(-545, -505)),
    data=st.data(),
)
def test_float64_of_any_magnitude_is_ranked_as_a_full_sort_ranks_it(
    similarity: str, dim: int, exponent: int, data: Any
) -> None:
    x, y = data.draw(doubles(dim, exponent)), data.draw(doubles(dim, exponent))
    labels_x, labels_y = (
        np.arange(len(x), dtype=np.uint32) % 2,
        np.arange(len(y), dtype=np.uint32) % 2,
    )
    expected = reference.evaluate(x, labels_x, y, labels_y, metrics=STANDARD, similarity=similarity)
    screen = data.draw(st.sampled_from(["float32", "16-bit"]))
    how = {"many_positives": data.draw(MANY_POSITIVES), "directions": data.draw(DIRECTIONS)}
    relation = Relation(labels=labels_x, gallery_labels=labels_y)
    k = data.draw(st.integers(1, len(y)))
    nearest = reference.nearest(x, y, k, similarity, False)[1]
    for kernel in KERNELS:
        with trial(kernel=kernel, screen=screen, few_queries=0, table_items=0, **how):
            (columns,) = count(x, y, relation, metrics=STANDARD, similarity=similarity)
            _, indices = _native.knn(x, y, k, similarity=similarity, exclude_self=False)
        assert_same(columns, expected, kernel)
        assert indices.tolist() == nearest, kernel


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize(
    "magnitude", [1e-323, 1e-310, 1e-165, 1e-161, 1e-158, 1e-154, 1e-150, 1e149]
)
def test_rows_whose_squares_underflow_are_ranked_by_their_keys(
    similarity: str, magnitude: float
) -> None:
    x = np.random.default_rng(0).normal(size=(300, 6)) * magnitude
    labels = np.arange(300, dtype=np.uint32) % 100
    results = set()
    for kernel, screen, many_positives in itertools.product(
        KERNELS, ("float32", "16-bit"), (0, 10**6)
    ):
        with trial(kernel=kernel, screen=screen, many_positives=many_positives):
            (found,) = count(
                x, None, Relation(labels=labels), similarity=similarity, metrics=STANDARD
            )
        results.add(bits_of(found))
    assert len(results) == 1


@pytest.mark.parametrize("values", [1, 3])
def test_the_first_of_many_equal_rows_are_found(values: int) -> None:
    """Full lists keep the first of equal rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(values, 24)).astype(np.float32)[rng.integers(values, size=400)]
    _, order = reference.nearest(x, x, 20, "dot", True)
    sizes = {"table_items": 0, "few_queries": 0, "directions": 0, "block_bytes": 4000}
    with trial(**sizes, task_row_panels=2, task_column_panels=1):
        _, found = knn(x, None, 20, similarity="dot", exclude_self=True)
    np.testing.assert_array_equal(found, order)


@pytest.mark.parametrize("similarity", [*SIMILARITIES, "hamming"])
@given(exclude_self=st.booleans(), data=st.data())
def test_neighbours_are_those_of_a_full_sort(
    similarity: str, exclude_self: bool, data: Any
) -> None:
    queries, _, gallery, _ = data.draw(problems(similarity))
    if gallery is None or exclude_self:
        gallery = None
    items = queries if gallery is None else gallery
    k = data.draw(st.integers(1, len(items) - exclude_self))
    how: dict[str, Any] = {
        "table_items": data.draw(st.sampled_from([0, 512])),
        "few_queries": data.draw(st.sampled_from([0, 2**40])),
    }
    if similarity != "hamming":
        how |= {
            "screen": data.draw(st.sampled_from(["float32", "16-bit"])),
            "directions": data.draw(DIRECTIONS),
        }
    keys, order = reference.nearest(queries, items, k, similarity, exclude_self)
    for kernel in KERNELS:
        with trial(kernel=kernel, **how):
            scores, indices = _native.knn(
                queries, gallery, k, similarity=similarity, exclude_self=exclude_self
            )
        assert indices.tolist() == order, kernel
        if similarity == "hamming":
            assert scores.tolist() == [[-k for k in row] for row in keys], kernel
        elif similarity != "cosine":
            assert scores.tolist() == keys, kernel
        else:
            scaled = np.array([reference.scaled(row) for row in queries]).astype(np.float64)
            squares = (scaled**2).sum(axis=1, keepdims=True)
            cosines = np.copysign(np.sqrt(np.abs(keys) / squares), keys)
            np.testing.assert_allclose(scores, cosines, rtol=0, atol=1e-7)  # float32's rounding


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("shift", [0.0, 0.3, 100.0])
def test_prefixes_of_rows_with_few_long_directions_change_no_bit(
    similarity: str, shift: float
) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 100, 1000).astype(np.uint32)
    decay = (1 + np.arange(96)) ** -1.5
    x = ((rng.normal(size=(100, 96))[labels] + rng.normal(size=(1000, 96))) * decay + shift).astype(
        np.float32
    )
    x = x @ np.linalg.qr(rng.normal(size=(96, 96)))[0].astype(np.float32)
    for kernel, screen in itertools.product(KERNELS, ("float32", "16-bit")):
        results = set()
        for directions in (0, None, 7, 96):
            with trial(
                kernel=kernel, screen=screen, directions=directions, few_queries=0, table_items=0
            ):
                (found,) = count(
                    x, None, Relation(labels=labels), similarity=similarity, metrics=STANDARD
                )
                arrays = _native.knn(x[:100], x, 9, similarity=similarity, exclude_self=False)
            results.add(bits_of(found) + b"".join(array.tobytes() for array in arrays))
        assert len(results) == 1


def test_a_translation_of_both_sides_changes_no_neighbour() -> None:
    """Search translations of a grid, for which float32 indexes that prune by prefixes fail (faiss
    issue 5329).
    """
    rng = np.random.default_rng(0)
    # Use multiples of 2^-7, so that translated rows and distances are exact in float32.
    gallery = (rng.integers(-64, 64, (400, 24)) / 128).astype(np.float32)
    queries = gallery[:50] + (rng.integers(-2, 3, (50, 24)) / 128).astype(np.float32)
    expected = reference.nearest(queries, gallery, 3, "euclidean", False)
    screens = ("float32", "16-bit")
    for offset, kernel, *how in itertools.product(
        (0.0, 1.0, 64.0, 4096.0), KERNELS, (None, 0, 4, 24), screens
    ):
        directions, screen = how
        with trial(
            kernel=kernel, screen=screen, directions=directions, few_queries=0, table_items=0
        ):
            moved = queries + np.float32(offset), gallery + np.float32(offset)
            scores, indices = _native.knn(*moved, 3, similarity="euclidean", exclude_self=False)
        assert indices.tolist() == expected[1], (offset, kernel, how)
        assert scores.tolist() == expected[0], (offset, kernel, how)


@given(small_rows(11), st.sampled_from([-1.0, 0.0, 0.5]))
def test_binarize_packs_as_numpy_does(x: np.ndarray, threshold: float) -> None:
    np.testing.assert_array_equal(binarize(x, threshold), np.packbits(x > threshold, axis=1))


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_kernel_screen_and_thread_count_gives_the_same_bits(
    similarity: str, dtype: type
) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(700, 37)).astype(dtype)
    labels = rng.integers(0, 60, 700).astype(np.uint32)
    metrics = [*STANDARD, "ndcg@20", "map"]
    results = set()
    options: dict[str, Any] = {"similarity": similarity, "metrics": metrics}
    for kernel, screen, threads in itertools.product(KERNELS, ("float32", "16-bit"), (1, 2, 3)):
        with trial(kernel=kernel, screen=screen, few_queries=0, table_items=0):
            (found,) = count(x, None, Relation(labels=labels), threads=threads, **options)
        results.add(bits_of(found))
    assert len(results) == 1
    given: Any = (x[:40], labels[:40], x, labels)
    expected = reference.evaluate(*given, metrics=STANDARD, similarity=similarity)
    found = evaluate(*given, metrics=STANDARD, similarity=similarity)  # type: ignore[arg-type]
    for name, values in expected.items():
        np.testing.assert_allclose(found.per_query[name], values, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "more", [[], ["ndcg@60"], ["map"]], ids=["few ranks", "more ranks", "all ranks"]
)
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("similarity", [*SIMILARITIES, "hamming"])
def test_classes_of_every_size_are_ranked_alike_whether_screened_or_not(
    similarity: str, ties: str, more: list[str]
) -> None:
    rng = np.random.default_rng(4)
    # Classes have hundreds, tens or only a few items, and rows are small integers that often tie.
    labels = np.minimum(rng.geometric(0.004, 1500) // 8, 90).astype(np.uint32)
    x = rng.integers(-3, 4, (1500, 11)) + np.arange(11) % 2
    x[:, 0] = 9
    results = set()
    for (many_positives, threads), rules in itertools.product(
        ((None, 1), (None, 2), (0, 1), (30, 2), (10**6, 1)), ([ties], TIES)
    ):
        rows = x.astype(np.uint8 if similarity == "hamming" else np.float32)
        with trial(many_positives=many_positives):
            found = count(
                rows, None, Relation(labels=labels), similarity=similarity,
                metrics=[*STANDARD, "recall@50", *more],
                ties=rules, threads=threads,
            )  # fmt: skip
        results.add(bits_of(found[rules.index(ties)]))
    assert len(results) == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_an_empty_batch_of_queries_has_no_neighbours(dtype: type, similarity: Any) -> None:
    gallery = np.eye(5, 3, dtype=dtype) + dtype(1)
    scores, indices = knn(np.zeros((0, 3), dtype), gallery, 2, similarity=similarity)
    some_scores, some_indices = knn(gallery, gallery, 2, similarity=similarity)
    assert (scores.shape, indices.shape) == ((0, 2), (0, 2))
    assert (scores.dtype, indices.dtype) == (some_scores.dtype, some_indices.dtype)
    codes, items = binarize(np.zeros((0, 3), dtype)), binarize(gallery)
    assert (codes.shape, codes.dtype) == ((0, 1), np.uint8)
    distances, indices = knn(codes, items, 5, similarity="hamming")
    some_distances, some_indices = knn(items, items, 5, similarity="hamming")
    assert (distances.shape, indices.shape) == ((0, 5), (0, 5))
    assert (distances.dtype, indices.dtype) == (some_distances.dtype, some_indices.dtype)


@given(st.integers(1, 2**20), st.integers(1, 2**20), st.integers(0, 20))
def test_collinear_rows_tie_where_their_key_is_exact(x: int, y: int, power: int) -> None:
    """Check rows that differ by a power of 2, and collinear integers with squares below 2**53."""
    query, row = np.array([[1.0, 2.0]]), np.array([x / 3, y / 7])
    _, indices = knn(query, np.stack([row * 2.0**power, row, row * 2.0**-power]), 3)
    assert indices.tolist() == [[0, 1, 2]]
    whole = np.array([x, y], np.float64)
    assert knn(query, np.stack([3 * whole, whole, 5 * whole]), 3)[1].tolist() == [[0, 1, 2]]


def test_other_collinear_rows_are_ordered_by_the_keys_last_bit() -> None:
    query, gallery = np.array([[1.0, 2.0]]), np.array([[0.1, 0.2], [0.5, 1.0]])
    assert 2 * gallery[0, 0] == gallery[0, 1]  # exactly collinear
    keys = reference.keys_of(query[0], gallery, "cosine")
    assert keys == [
        np.nextafter(1.25, 0.0),
        1.25,
    ]  # the query is halved, so that the largest element is 1
    for ties in TIES:  # rules for ties must not apply
        found = evaluate(query, [0], gallery, [0, 1], ties=ties, metrics="recall@1")  # type: ignore[arg-type]
        assert found["recall@1"] == 0
