"""Assertions about evaluations."""

from __future__ import annotations

from dml_eval_rs import Evaluation


def assert_same_bits(a: Evaluation, b: Evaluation) -> None:
    """Check that means and every query's values agree to the bit."""
    assert a.to_dict() == b.to_dict()
    for name, values in a.per_query.items():
        assert values.tobytes() == b.per_query[name].tobytes(), name
