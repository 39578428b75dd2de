"""The caller's floating-point environment does not change results: rounding modes and flushing to
zero.
"""

from __future__ import annotations

import ctypes
import pickle
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dml_eval_rs as ours

RNG = np.random.default_rng(0)
LABELS = np.arange(120) % 30
ORDINARY = RNG.normal(size=(120, 7))
NEIGHBOURS = (np.arange(120)[:, None] + np.arange(5)) % 120
PAIRS = np.stack([NEIGHBOURS[:, 0], (NEIGHBOURS[:, 0] * 7 + 30) % 120], 1)
PAIRS = PAIRS[PAIRS[:, 0] != PAIRS[:, 1]]
CODES = RNG.integers(0, 4, (120, 2), dtype=np.uint8)
# All or some numbers are subnormal in this precision.
TINY = {np.float32: ORDINARY * 1e-41, np.float64: ORDINARY * 1e-310}
MIXED = {np.float32: ORDINARY * 10.0 ** RNG.integers(-44, -36, (120, 7))}
MIXED[np.float64] = ORDINARY * 10.0 ** RNG.integers(-320, -300, (120, 7))
ARRAYS = [ORDINARY.astype(np.float32), ORDINARY]
ARRAYS += [x[dtype].astype(dtype) for x in (TINY, MIXED) for dtype in (np.float32, np.float64)]
ARRAYS.append(ORDINARY * 1e-158)  # squares are subnormal
ROUNDING = {"x86_64": (0, 0x400, 0x800, 0xC00), "aarch64": (0, 0x800000, 0x400000, 0xC00000)}


def bits_of(results: list[Any]) -> bytes:
    """Pickle results without the curves' points, which numpy divides in the caller's rounding
    mode.
    """
    return pickle.dumps(
        [replace(x, roc=None) if isinstance(x, ours.Verification) else x for x in results]
    )


def measure() -> bytes:
    """Call all functions; return the bits of the results."""
    code: Any = {"similarity": "hamming"}
    names = ["recall@1", "recall@5", "precision@1", "r_precision", "map@r", "mrr"]
    found: list[Any] = [
        ours.nmi(LABELS, LABELS // 3),
        ours.ami(LABELS, LABELS // 7),
        ours.ari(LABELS, LABELS // 3),
        ours.knn(CODES, None, 5, **code),
        ours.verify(CODES, LABELS, **code),
        ours.evaluate_ties(CODES, LABELS, metrics=names, **code),
        ours.range_search(CODES, None, 3, **code),
        ours.hard_negatives(CODES, LABELS, 3, **code),
    ]
    for x in ARRAYS:
        found += [ours.binarize(x), ours.binarize(x, 1e-40), ours.kmeans(x, 9)]
        for similarity in ("cosine", "dot", "euclidean"):
            options: Any = {"similarity": similarity}
            parts = [x[:50], x[50:]]
            found += [
                ours.evaluate(x, LABELS, metrics=[*names, "nmi", "ami", "ari"], **options),
                ours.evaluate(
                    x[:50], LABELS[:50], x, LABELS, ties="expected", metrics=names, **options
                ),
                ours.evaluate_shards(parts, LABELS, metrics=names, block=40, **options),
                ours.knn(x, None, 9, **options),
                ours.index_recall(NEIGHBOURS, x, None, 5, **options),
                ours.range_search(x, None, 0.0, **options),
                ours.hard_negatives(x, LABELS, 3, below="easiest", **options),
                ours.open_set(x[:60], LABELS[:60], x[85:110], LABELS[85:110], **options),
                ours.verify(x, LABELS, pairs=PAIRS, folds=5, **options),
                ours.verify(x, LABELS, **options),
                ours.verify(x, LABELS, x[:50], LABELS[:50], **options),
                ours.verify_shards(parts, LABELS, block=40, **options),
            ]
    return bits_of(found)


@pytest.fixture(scope="module")
def expected() -> bytes:
    """Measure in the default environment."""
    return measure()


# When rounding to the nearest number, 1/3 is rounded down and 1/10 is rounded up.
DIVISORS = np.array([3.0, 10.0])
QUOTIENTS = (np.ones(2) / DIVISORS).tobytes()


@contextmanager
def rounding(mode: int) -> Iterator[None]:
    libm = ctypes.CDLL(None)
    before = libm.fegetround()
    assert libm.fesetround(mode) == 0
    try:
        yield
        assert libm.fegetround() == mode, "the caller's rounding mode changed"
    finally:
        libm.fesetround(before)


@contextmanager
def flushing(set_flush: Callable[[bool], bool]) -> Iterator[None]:
    if not set_flush(True):
        pytest.skip("this CPU does not flush subnormal numbers")
    try:
        assert np.float64(5e-324) * np.ones(1) == 0.0
        yield
        assert np.float64(5e-324) * np.ones(1) == 0.0, (
            "flushing to zero was switched off for the caller"
        )
    finally:
        set_flush(False)


def flush_by_mxcsr(on: bool) -> bool:
    """Set or clear flush-to-zero and denormals-are-zero in the MXCSR, using byte 28 of glibc's
    fenv_t.
    """
    libm, environment = ctypes.CDLL(None), (ctypes.c_uint32 * 8)()
    libm.fegetenv(environment)
    environment[7] = environment[7] | 0x8040 if on else environment[7] & ~0x8040
    return bool(libm.fesetenv(environment) == 0)


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in ROUNDING,
    reason="only knows glibc's numbers of rounding modes, on x86-64 and aarch64",
)
@pytest.mark.parametrize("mode", range(4), ids=["to nearest", "1", "2", "to zero"])
def test_a_rounding_mode_changes_no_bit(mode: int, expected: bytes) -> None:
    with rounding(ROUNDING[platform.machine()][mode]):
        assert (np.ones(2) / DIVISORS).tobytes() != QUOTIENTS or mode == 0, (
            "the rounding mode has no effect"
        )
        found = measure()
    assert found == expected


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64",
    reason="needs x86-64's MXCSR",
)
def test_flushing_subnormal_numbers_changes_no_bit(expected: bytes) -> None:
    with flushing(flush_by_mxcsr):
        found = measure()
    assert found == expected


def test_flushing_subnormal_numbers_by_torch_changes_no_bit(expected: bytes) -> None:
    torch = pytest.importorskip("torch", reason="torch.set_flush_denormal needs torch")
    with flushing(torch.set_flush_denormal):
        found = measure()
    assert found == expected
