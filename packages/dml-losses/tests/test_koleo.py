"""KoLeo spreads rows over the sphere; `test_pair_losses.py` compares it with its equation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_support import rows

from dml_losses import KoLeo
from dml_losses.functional import koleo


def test_opposite_rows_by_hand() -> None:
    """Both rows are at distance 2 from the nearest other row."""
    x = torch.tensor([[3.0, 0.0], [-1.0, 0.0]])
    assert koleo(x, torch.tensor([0, 1])).item() == pytest.approx(-math.log(2))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**16), count=st.integers(2, 20), norm=st.floats(1e-6, 1e6))
def test_only_distances_on_the_sphere_matter(seed: int, count: int, norm: float) -> None:
    """Rotations, lengths and labels change nothing; no row is farther than 2 from its neighbour."""
    x = rows(count, seed)
    rotation = torch.linalg.qr(rows(5, seed + 1)).Q
    value = koleo(x, torch.arange(count))
    # The rounding of cosines, 1e-16, can be 1e-9 of a distance between close rows.
    torch.testing.assert_close(
        koleo(norm * x @ rotation, torch.zeros(count).long()), value, rtol=0, atol=1e-8
    )
    assert value >= -math.log(2) - 1e-8


def test_a_step_against_the_gradient_spreads_collapsed_rows() -> None:
    x = (torch.ones(12, 5) + 1e-3 * rows(12, 0)).requires_grad_()
    loss = KoLeo()
    before = loss(x, torch.arange(12))
    optimizer = torch.optim.SGD([x], lr=1e-4)
    for _ in range(50):
        optimizer.zero_grad()
        loss(x, torch.arange(12)).backward()
        optimizer.step()
    assert loss(x, torch.arange(12)) < before - 1


def test_equal_rows_stay_and_others_move() -> None:
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    koleo(x, torch.arange(3)).backward()
    assert x.grad.isfinite().all()
    assert x.grad[2, 0] != 0
