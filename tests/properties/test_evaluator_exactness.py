"""Near ties that float32 ranks wrongly, and bits that don't depend on how the work is divided."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import pytest
from eval_support.assertions import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_eval_rs import binarize, evaluate, evaluate_shards, knn

METRICS = ["recall@1", "recall@5", "precision@1", "r_precision", "map@r", "mrr"]
DTYPES = (np.float16, np.float32, np.float64)


def near_ties(dim: int, items: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a query and float32 items that differ in the last bits of a few numbers."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(dim, dtype=np.float32)
    gallery = np.repeat(base[None], items, axis=0)
    for row in gallery:
        at = rng.integers(0, dim, 3)
        row[at] = np.nextafter(row[at], row[at] + rng.choice(np.array([-1, 1], np.float32), 3))
    return rng.standard_normal((1, dim), dtype=np.float32), gallery


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_near_ties_are_ranked_correctly_where_float32_fails(
    similarity: Literal["cosine", "dot", "euclidean"],
) -> None:
    wrong = 0
    for seed in range(5):
        query, gallery = near_ties(300, 40, seed)
        # Exact rational arithmetic is the oracle: float32 numbers are fractions with small
        # denominators.
        q, g = (x.astype(object) for x in (query[0].astype(np.float64), gallery.astype(np.float64)))
        scale = 2**60
        q, g = (
            np.array([int(v * scale) for v in x.ravel()], object).reshape(x.shape) for x in (q, g)
        )
        assert all(int(float(v) * scale) == w for v, w in zip(gallery.ravel()[:50], g.ravel()[:50]))
        if similarity == "dot":
            keys = [sum(q * row) for row in g]
        elif similarity == "euclidean":
            keys = [-sum((q - row) ** 2) for row in g]
        else:
            from fractions import Fraction

            dots = [sum(q * row) for row in g]
            keys = [Fraction(d * abs(d), sum(row * row)) for d, row in zip(dots, g)]
        order = sorted(range(40), key=lambda i: (-keys[i], i))
        gaps = [abs(float(keys[a] - keys[b])) for a, b in itertools.pairwise(order)]
        size = max(abs(float(k)) for k in keys)
        found = knn(query, gallery, 40, similarity=similarity)[1][0].tolist()
        for place, (a, b) in enumerate(itertools.pairwise(order)):
            # Float64 rounds, too, so only keys that differ by more than the rounding error must be
            # in order.
            if gaps[place] > 1e-12 * size:
                assert found.index(a) < found.index(b)
        fast = {
            "dot": gallery @ query[0],
            "euclidean": -((gallery - query[0]) ** 2).sum(axis=1),
            "cosine": (gallery @ query[0]) / np.linalg.norm(gallery, axis=1),
        }[similarity]
        wrong += sorted(range(40), key=lambda i: (-fast[i], i)) != found
    assert wrong == 5, "these galleries are too easy for this test: float32 ranks them correctly"


@st.composite
def tied_rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of small integers that often tie, and labels, not all different."""
    n, dim = draw(st.integers(2, 120)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.integers(-2, 3, (n, dim))
    x[:, 0] += 5  # rows of zeros are not used
    labels = rng.integers(0, draw(st.integers(1, n)), n)
    labels[:2] = 0
    return x.astype(draw(st.sampled_from(DTYPES))), labels


@settings(deadline=None, max_examples=40)
@given(
    rows=tied_rows(),
    similarity=st.sampled_from(["cosine", "dot", "euclidean", "hamming"]),
    ties=st.sampled_from(["index", "optimistic", "pessimistic", "expected"]),
    data=st.data(),
)
def test_threads_layouts_and_blocks_change_no_bit(
    rows: Any, similarity: Any, ties: Any, data: Any
) -> None:
    x, labels = rows
    options: Any = {
        "similarity": similarity, "ties": ties, "metrics": METRICS,
    }  # fmt: skip
    if similarity == "hamming":
        x = binarize(x)
    first = evaluate(x, labels, threads=1, **options)
    assert_same_bits(first, evaluate(x, labels, threads=2, **options))
    assert_same_bits(first, evaluate(np.asfortranarray(x), labels, threads=2, **options))
    assert_same_bits(first, evaluate(np.repeat(x, 2, axis=0)[::2], labels, threads=1, **options))
    cut, block = data.draw(st.integers(0, len(x))), data.draw(st.integers(1, len(x)))
    assert_same_bits(first, evaluate_shards([x[:cut], x[cut:]], labels, block=block, **options))
    own = np.arange(len(x))
    assert_same_bits(first, evaluate(x, labels, x.copy(), labels, exclude=own, **options))


@settings(deadline=None, max_examples=25)
@given(rows=tied_rows(), factor=st.sampled_from([2.0**-10, 2.0**10]))
def test_a_power_of_two_changes_nothing(rows: Any, factor: float) -> None:
    x, labels = rows
    x = x.astype(np.float32)
    for similarity in ("cosine", "dot", "euclidean"):
        a = evaluate(x, labels, similarity=similarity, metrics=METRICS)  # type: ignore[arg-type]
        b = evaluate(x * np.float32(factor), labels, similarity=similarity, metrics=METRICS)  # type: ignore[arg-type]
        assert_same_bits(a, b)
