from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from losses_support import references as reference
from torch.autograd import grad

from dml_core import Linear
from dml_losses import RankedListLoss
from dml_losses.functional import pairs, ranked_list

PAPER = {
    "margin": 0.4,
    "alpha": 1.2,
    "negative_temperature": 10.0,
    "positive_temperature": 0.0,
    "balance": 0.5,
}
OTHERS = [
    PAPER,
    PAPER | {"margin": 0.2, "alpha": 1.1, "negative_temperature": 0.0},
    PAPER | {"positive_temperature": 5.0, "balance": 0.3},
    PAPER | {"positive_temperature": -5.0, "alpha": 1.9, "margin": 1.9},
    PAPER | {"query_weights": "total"},
    PAPER | {"query_weights": "total", "positive_temperature": 3.0, "balance": 0.2, "alpha": 1.7},
]


def rows(count: int, seed: int, dim: int = 3) -> torch.Tensor:
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("parameters", OTHERS)
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [3, 0, 3, 3, 7, 0, 5], [0, 0, 0], [0, 1, 2], [4]])
def test_value_and_gradient_are_those_of_equations_8_to_14(
    parameters: dict[str, Any], labels: list[int]
) -> None:
    x, y = rows(len(labels), 0).requires_grad_(), torch.tensor(labels)
    value = ranked_list(x, y, **parameters)
    expected = reference.ranked_list_value(x, y, **parameters)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grad(value, x)[0], grad(expected, x)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("parameters", OTHERS)
def test_all_of_a_gallery_is_ranked_and_gets_no_gradient(parameters: dict[str, Any]) -> None:
    x, y = rows(5, 1).requires_grad_(), torch.tensor([2, 0, 1, 0, 9])
    g, z = rows(7, 2).requires_grad_(), torch.tensor([0, 1, 1, 3, 0, 1, 4])
    value = ranked_list(x, y, g, z, **parameters)
    expected = reference.ranked_list_value(x, y, g, z, **parameters)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    gradients = grad(value, (x, g), materialize_grads=True)
    torch.testing.assert_close(gradients[0], grad(expected, x)[0], rtol=1e-9, atol=1e-12)
    assert torch.equal(gradients[1], torch.zeros_like(g))


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
    assert gradient.abs().max() < 1e-3  # equal rows have no direction between them


@pytest.mark.parametrize("distance", [1e-5, 1e-3])
def test_near_negatives_have_the_gradient_of_any_others(distance: float) -> None:
    """The derivative of any distance above 0 is 1: λ/2 for each of two queries."""
    angle = 2 * math.asin(distance / 2)
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64).requires_grad_()
    value = ranked_list(x, torch.tensor([0, 1]))
    # 2 − 2·cosine has an error of 1e-16, which is 1e-6 of 1e-10
    assert value.item() == pytest.approx(0.5 * (1.2 - distance), rel=1e-9)
    gradient = grad(value, x)[0]
    assert gradient[:, 1].tolist() == pytest.approx([0.25, -0.25], rel=1e-5)


def test_queries_weighted_by_their_totals_are_the_same_in_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(150, 4).requires_grad_(), torch.arange(150) % 40
    value = ranked_list(x, y, query_weights="total")
    gradient = grad(value, x)[0]
    monkeypatch.setattr(pairs, "_CPU_BLOCK_ELEMENTS", 16 * 150)
    blocks = ranked_list(x, y, query_weights="total")
    torch.testing.assert_close(blocks, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad(blocks, x)[0], gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("temperature", [10.0, 1000.0])
def test_totals_of_any_temperature_stay_finite(temperature: float) -> None:
    x = rows(20, 5).float().requires_grad_()
    value = ranked_list(x, torch.arange(20) // 2, negative_temperature=temperature, query_weights="total")
    assert torch.isfinite(value)
    assert torch.isfinite(grad(value, x)[0]).all()


def test_queries_without_violations_have_no_weight() -> None:
    """The third class is alone in its half of the sphere: only the first two classes' rows violate anything."""
    x = torch.tensor(
        [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [-1.0, 0.0], [-1.0, 0.1]], dtype=torch.float64
    )
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    near = ranked_list(x[:4], y[:4], query_weights="total")
    torch.testing.assert_close(ranked_list(x, y, query_weights="total"), near, rtol=1e-14, atol=0)
    torch.testing.assert_close(ranked_list(x, y), ranked_list(x[:4], y[:4]) * 4 / 6, rtol=1e-14, atol=0)


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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"margin": -0.1}, r"margin is -0\.1; expected a finite number of at least 0"),
        ({"margin": 1.3}, r"margin is 1\.3; expected at most alpha, 1\.2"),
        ({"alpha": 0.0}, r"alpha is 0\.0; expected a finite number above 0"),
        ({"query_weights": "sum"}, "query_weights is 'sum'; expected 'equal' or 'total'"),
        ({"balance": 1.1}, r"balance is 1\.1; expected a number in \[0, 1\]"),
        ({"negative_temperature": float("inf")}, "negative_temperature is inf; expected a finite number"),
    ],
)
def test_a_parameter_outside_its_range_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RankedListLoss(**parameters)
