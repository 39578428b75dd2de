"""Assertions about evaluations and verifications."""

from __future__ import annotations

from typing import TypeVar

from dml_eval_rs import Evaluation, Verification

Result = TypeVar("Result", Evaluation, Verification)


def assert_same_bits(a: Result, b: Result) -> None:
    """Check that values, curves and per-query values are equal to the bit."""
    assert list(a) == list(b)
    assert a.to_dict() == b.to_dict()
    if isinstance(a, Evaluation):
        for name, values in a.per_query.items():
            assert values.tobytes() == b.per_query[name].tobytes(), name
        return
    assert (a.roc is None) == (b.roc is None)
    for name in () if a.roc is None else ("far", "tar", "threshold"):
        assert getattr(a.roc, name).tobytes() == getattr(b.roc, name).tobytes(), name
