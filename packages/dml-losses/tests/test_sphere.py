"""Test directions and gradients of rows of any length."""

from __future__ import annotations

import pytest
import torch
from losses_support import references as reference
from losses_support import rows
from torch.autograd import grad

from dml_losses.functional.sphere import (
    common_precision,
    full_precision,
    inverse_norms,
    through_norm_,
    unit_rows,
)


@pytest.mark.parametrize("size", [1e-18, 1e-9, 1.0, 1e9, 1e18])
def test_a_row_of_any_length_in_range_has_its_direction(size: float) -> None:
    x = rows(20, 0)
    short = (size * x).float()
    torch.testing.assert_close(
        unit_rows(short).double(), reference.unit(x), rtol=0, atol=3e-7
    )  # float32
    norms = size * x.norm(dim=1)
    torch.testing.assert_close(
        inverse_norms(short).double() * norms, torch.ones(20).double(), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-21, 1e21, 1e30])
def test_a_row_whose_squares_leave_float32_has_no_direction_and_gets_no_gradient(
    size: float,
) -> None:
    x = (size * rows(20, 0)).float().requires_grad_()
    assert not unit_rows(x).any()
    assert not inverse_norms(x).any()
    assert not grad(unit_rows(x).sum(), x)[0].any()


@pytest.mark.parametrize("unit", [False, True])
def test_the_gradient_through_the_norm_of_many_rows_is_that_of_the_equation(unit: bool) -> None:
    x, given = rows(1100, 1), rows(1100, 2)
    inverse = inverse_norms(x)
    gradient = given.clone() if unit else given * inverse[:, None]
    through_norm_(gradient, x * inverse[:, None] if unit else x, inverse, unit=unit)
    torch.testing.assert_close(
        gradient, reference.through_the_norm(x, given), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float32])
def test_both_sides_are_computed_in_the_wider_precision(narrow: torch.dtype) -> None:
    x, y = rows(3, 3), rows(3, 4).to(narrow)
    for pair in (common_precision(x, y), reversed(common_precision(y, x))):
        wide, other = pair
        assert torch.equal(wide, x)
        assert torch.equal(other, y.double())


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_and_the_gradient_clamped_into_its_range(
    narrow: torch.dtype,
) -> None:
    x = rows(1, 5, dim=4).to(narrow).requires_grad_()
    assert full_precision(x).dtype == torch.float32
    largest = torch.finfo(narrow).max
    given = torch.tensor([[1.0, -2.0, 3.4e38, -3.4e38]])
    gradient = grad(full_precision(x), x, given)[0]
    assert gradient.dtype == narrow
    assert gradient.tolist() == [[1.0, -2.0, largest, -largest]]
