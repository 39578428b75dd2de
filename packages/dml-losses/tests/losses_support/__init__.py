"""Code that the tests of dml-losses share; pytest's `pythonpath` in the root pyproject.toml makes it importable."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def rows(count: int, seed: int, dim: int = 5) -> torch.Tensor:
    """Draw rows in float64."""
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_same_gradients(
    value: torch.Tensor,
    expected: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    close: tuple[float, float],
    gradients_close: tuple[float, float],
) -> None:
    """Compare two losses, and their gradients with respect to the same leaves, within (rtol, atol)."""
    torch.testing.assert_close(value, expected, rtol=close[0], atol=close[1])
    for got, want in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(expected, leaves)):
        torch.testing.assert_close(got, want, rtol=gradients_close[0], atol=gradients_close[1])
