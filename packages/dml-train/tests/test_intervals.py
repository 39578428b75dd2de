"""Intervals over repeated runs, compared with published quantiles."""

from __future__ import annotations

import math

import pytest

from dml_train.measure.intervals import average_runs, pool_spread, share_interval


def test_runs_have_students_interval_and_one_run_has_none():
    mean, half_width = average_runs([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half_width == pytest.approx(4.303 / math.sqrt(3), abs=1e-12)
    mean, half_width = average_runs([0.0, 1.0] * 200)
    assert mean == 0.5
    assert half_width == pytest.approx(1.96 * 0.5 / 20, rel=2e-3)  # 0.5 divides by n, not by n - 1
    assert average_runs([0.5]) == (0.5, None)
    with pytest.raises(ValueError, match="one or more"):
        average_runs([])


def test_the_spread_of_settings_is_pooled_about_each_settings_mean():
    spread = pool_spread([[0.0, 2.0], [10.0, 14.0], [5.0], []])
    assert spread == (pytest.approx(math.sqrt((1 + 1 + 4 + 4) / 2)), 2)
    assert spread.half_width(2) == pytest.approx(4.303 * math.sqrt(5 / 2))
    assert spread.half_width_of_difference(2) == pytest.approx(4.303 * math.sqrt(5))
    assert pool_spread([[1.0], [2.0]]) is None


def test_a_share_of_queries_has_the_binomial_interval():
    assert share_interval(0.5, 10_000).half_width == pytest.approx(
        1.96 * 0.005, rel=1e-4
    )  # 1.96 is rounded
    assert share_interval(1.0, 10).half_width == 0.0
