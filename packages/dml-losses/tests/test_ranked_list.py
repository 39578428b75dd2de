from __future__ import annotations

import math

import pytest
import torch
from losses_support import rows
from torch.autograd import grad

from dml_core import Linear
from dml_losses import RankedListLoss
from dml_losses.functional import ranked_list


def test_pairs_on_the_right_side_of_their_boundaries_cost_nothing() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]], requires_grad=True)
    value = ranked_list(x, torch.tensor([0, 0, 1, 1]))
    assert value == 0
    assert torch.equal(grad(value, x)[0], torch.zeros_like(x))


@pytest.mark.parametrize("seed", range(5))
def test_duplicated_rows_of_two_classes_have_a_finite_gradient(seed: int) -> None:
    x = rows(1, seed, dim=8).float().repeat(4, 1).requires_grad_()
    gradient = grad(ranked_list(x, torch.tensor([0, 0, 1, 1])), x)[0]
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() < 1e-3  # a direction is not defined between equal rows


@pytest.mark.parametrize("distance", [1e-5, 1e-3])
def test_near_negatives_have_the_gradient_of_any_others(distance: float) -> None:
    """However near a negative is, the gradient of each of the two queries has length λ/2."""
    angle = 2 * math.asin(distance / 2)
    x = torch.tensor(
        [[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64
    ).requires_grad_()
    value = ranked_list(x, torch.tensor([0, 1]))
    # The error of 2 − 2·cosine is 1e-16, which is 1e-6 relative to 1e-10.
    assert value.item() == pytest.approx(0.5 * (1.2 - distance), rel=1e-9)
    gradient = grad(value, x)[0]
    assert gradient[:, 1].tolist() == pytest.approx([0.25, -0.25], rel=1e-5)


@pytest.mark.parametrize("temperature", [10.0, 1000.0])
def test_totals_of_any_temperature_stay_finite(temperature: float) -> None:
    x = rows(20, 5).float().requires_grad_()
    value = ranked_list(
        x, torch.arange(20) // 2, negative_temperature=temperature, query_weights="total"
    )
    assert torch.isfinite(value)
    assert torch.isfinite(grad(value, x)[0]).all()


def test_queries_without_violations_have_no_weight() -> None:
    """Only rows of the first and second class violate a boundary, since the third class is far
    away.
    """
    x = torch.tensor(
        [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [-1.0, 0.0], [-1.0, 0.1]],
        dtype=torch.float64,
    )
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    near = ranked_list(x[:4], y[:4], query_weights="total")
    torch.testing.assert_close(ranked_list(x, y, query_weights="total"), near, rtol=1e-14, atol=0)
    torch.testing.assert_close(
        ranked_list(x, y), ranked_list(x[:4], y[:4]) * 4 / 6, rtol=1e-14, atol=0
    )


def test_simpler_centres_the_boundaries_at_distance_one() -> None:
    loss = RankedListLoss.simpler(margin=0.6, negative_temperature=7.0)
    assert (loss.alpha, loss.margin, loss.negative_temperature) == (1.3, 0.6, 7.0)
    assert loss.positive_temperature == 0
    assert loss.hypersphere_diameter == pytest.approx(0.7)
    assert RankedListLoss.simpler(query_weights="total").query_weights == "total"


def test_the_dynamic_temperature_of_equation_15_is_a_linear_schedule() -> None:
    first, last, steps = 20.0, 5.0, 10
    schedule, loss = Linear(first, last, steps), RankedListLoss()
    x, y = rows(6, 3), torch.arange(6) // 2
    for step in range(steps):
        loss.negative_temperature = schedule(step)
        equation_15 = first - step * (first - last) / steps
        expected = ranked_list(x, y, negative_temperature=equation_15)
        torch.testing.assert_close(loss(x, y), expected, rtol=1e-14, atol=0)
