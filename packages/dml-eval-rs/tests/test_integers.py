"""int8 and uint8 vectors give the results of exact integer arithmetic, in all functions and from
files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_support.path_data import screens
from eval_support.trial import trial
from hypothesis import given
from hypothesis import strategies as st

from dml_eval_rs import (
    evaluate,
    hard_negatives,
    index_recall,
    knn,
    knn_shards,
    range_search,
    top_pairs,
    verify,
)
from dml_eval_rs.inputs.files import save_array

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 7


def rows(dtype: Any, n: int = 60, dim: int = 24, seed: int = 0) -> np.ndarray:
    """Draw rows of the smallest, the largest and a few other values, so that sums are large and
    tie.
    """
    information = np.iinfo(dtype)
    values = [information.min, information.max, 1, 2, 100]
    return np.random.default_rng(seed).choice(values, (n, dim)).astype(dtype)


@given(
    st.sampled_from([np.int8, np.uint8]), st.sampled_from(["dot", "euclidean"]), st.integers(1, 70),
    st.integers(0, 2**32), st.sampled_from(screens()), st.sampled_from([0, 32]),
)  # fmt: skip
def test_neighbours_are_those_of_python_integers(
    dtype: Any, similarity: Any, dim: int, seed: int, screen: tuple[str, str], few_queries: int
) -> None:
    gallery, queries = rows(dtype, 40, dim, seed), rows(dtype, 5, dim, seed + 1)
    with trial(kernel=screen[0], screen=screen[1], table_items=0, few_queries=few_queries):
        scores, found = knn(queries, gallery, 7, similarity=similarity)
        offsets, ranged, _ = range_search(
            queries, gallery, float(scores[0, 3]), similarity=similarity
        )
    for q, query in enumerate(queries.tolist()):
        keys = [
            -sum((a - b) ** 2 for a, b in zip(query, item))
            if similarity == "euclidean"
            else sum(a * b for a, b in zip(query, item))
            for item in gallery.tolist()
        ]
        order = sorted(range(40), key=lambda i: (-keys[i], i))
        assert found[q].tolist() == order[:7]
        assert scores[q].tolist() == [float(np.float32(keys[i])) for i in order[:7]]
        assert ranged[offsets[q] : offsets[q + 1]].tolist() == [
            i for i in order if keys[i] >= scores[0, 3]
        ]


@given(
    st.sampled_from([np.int8, np.uint8]), st.sampled_from([np.int8, np.uint8, np.float32]),
    st.sampled_from(["cosine", "dot", "euclidean"]),
    st.integers(1, 70), st.integers(0, 2**32), st.sampled_from(screens()),
    st.sampled_from([0, 32]), st.sampled_from([0, 2**40]),
)  # fmt: skip
def test_bytes_in_place_have_the_bits_of_float32_copies(
    dtype: Any, other: Any, similarity: Any, dim: int, seed: int, screen: tuple[str, str],
    few_queries: int, tables: int,
) -> None:  # fmt: skip
    gallery, queries = rows(dtype, 60, dim, seed), rows(np.int8, 5, dim, seed + 1).astype(other)
    if similarity == "cosine":
        gallery[:, 0], queries[:, 0] = 1, 1
    sizes = {"table_items": tables, "few_queries": few_queries, "directions": 0}
    both: dict[Any, list[np.ndarray]] = {}
    for kind in ("bytes", "float32"):
        q, g = (queries, gallery)
        if kind == "float32":
            q, g = q.astype(np.float32), g.astype(np.float32)
        options: Any = {"similarity": similarity, "exclude": np.array([3, -1, 7, 7, 59])}
        with trial(kernel=screen[0], screen=screen[1], **sizes):
            found = knn(q, g, 11, **options)
            own = knn(g, None, 3, similarity=similarity)
            strided = knn(q[:, ::2], g[::2, ::2], 4, similarity=similarity)
            ranged = range_search(q, g, float(found[0][0, 5]), similarity=similarity)
        both[kind] = [*found, *own, *strided, *ranged]
    for found, expected in zip(both["bytes"], both["float32"], strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
@pytest.mark.parametrize("dim", [16_384, 65_536])  # the widest rows of bytes, and of int16
@pytest.mark.parametrize("kernel", sorted({kernel for kernel, _ in screens()}))
def test_sums_of_the_widest_extreme_rows_are_exact(similarity: Any, dim: int, kernel: str) -> None:
    x = np.zeros((40, dim), np.uint8)
    x[:20], x[20, :-1], x[21:30, 0] = 255, 255, np.arange(1, 10)
    y = np.full((2, dim), -128, np.int8)
    with trial(kernel=kernel, table_items=0, few_queries=0, directions=0):
        scores, found = knn(y, x, 40, similarity=similarity)
    wide = x.astype(np.int64)
    keys = -((wide + 128) ** 2).sum(1) if similarity == "euclidean" else -128 * wide.sum(1)
    order = np.lexsort((np.arange(40), -keys))
    assert found.tolist() == [order.tolist()] * 2
    assert scores.tolist() == [keys[order].astype(np.float32).tolist()] * 2


def test_a_zero_row_has_no_cosine_and_is_named() -> None:
    x = rows(np.uint8)
    x[17] = 0
    for vectors in (x, x.astype(np.float32)):
        with pytest.raises(ValueError, match=r"17"):
            knn(vectors, None, 3, similarity="cosine")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_each_function_takes_bytes_as_vectors_if_a_similarity_is_given(
    dtype: Any, similarity: Any
) -> None:
    x, wide = rows(dtype), rows(dtype).astype(np.float64)
    options: Any = {"similarity": similarity}
    for of in (
        lambda x: knn(x, None, 5, **options),
        lambda x: hard_negatives(x, LABELS, 3, below="hardest", **options),
        lambda x: top_pairs(x, 20, **options),
        lambda x: knn_shards([x[:20], x[20:]], None, 5, block=17, **options),
        lambda x: [index_recall(LABELS[:, None], x, None, 1, **options).per_query],
        lambda x: [np.array([*evaluate(x, LABELS, **options).values()])],
        lambda x: [np.array([*verify(x, LABELS, **options).values()])],
    ):
        for found, expected in zip(of(x), of(wide), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_files_of_bytes_are_shards(tmp_path: Path) -> None:
    x = rows(np.uint8)
    for suffix in (".u8bin", ".bvecs"):
        save_array(tmp_path / f"x{suffix}", x)
        found = knn_shards([tmp_path / f"x{suffix}"], None, 4, similarity="euclidean")
        np.testing.assert_array_equal(found, knn(x, None, 4, similarity="euclidean"))


def test_bytes_without_a_similarity_are_refused_with_both_readings() -> None:
    x = rows(np.uint8)
    message = (
        "uint8, but no similarity is given; expected similarity='hamming' for binary codes, or "
        "'cosine'"
    )
    for call in (
        lambda: knn(x, None, 3), lambda: evaluate(x, LABELS), lambda: verify(x, LABELS),
        lambda: top_pairs(x, 3),
        lambda: knn_shards([x], None, 3), lambda: hard_negatives(x, LABELS, 3),
        lambda: range_search(x, None, 0.5),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    assert (knn(x, None, 1, similarity="hamming")[0] == 0).all()
    assert (knn(x.astype(np.int8), None, 1)[1][:, 0] <= np.arange(60)).all()
