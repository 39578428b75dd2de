"""Code that the tests of dml-losses share; pytest's `pythonpath` in the root pyproject.toml makes
it importable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from dml_losses.functional import cosine_softmax as kernel


def rows(count: int, seed: int, dim: int = 5) -> torch.Tensor:
    """Draw rows in float64."""
    return torch.randn(
        count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def batch(step: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a training step's rows of five numbers in float32, and labels of four classes."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 5, generator=generator), torch.randint(
        0, 4, (size,), generator=generator
    )


def recording(base: type[nn.Module], note: Callable[..., Any]) -> tuple[list[Any], type[nn.Module]]:
    """Return a list, and a subclass of a class loss that adds `note(embeddings, class_weights)`
    when it is called.
    """
    seen: list[Any] = []

    class Recording(base):  # type: ignore[misc, valid-type]
        def forward(self, embeddings, labels, class_weights=None):  # type: ignore[no-untyped-def]
            seen.append(note(embeddings, class_weights))
            return super().forward(embeddings, labels, class_weights)

    return seen, Recording


def use_blocks(monkeypatch: pytest.MonkeyPatch, kept: bool, size: int) -> None:
    """Keep derivatives in blocks of `size` rows or, if not `kept`, pass twice over blocks of `size`
    class weights.
    """
    monkeypatch.setattr(kernel, "_KEPT_ELEMENTS", {"cpu": 2**23 if kept else 0})
    monkeypatch.setattr(kernel, "_BLOCK_ELEMENTS", {"cpu": 0})
    monkeypatch.setattr(kernel, "_FEWEST_ROWS", size)
    monkeypatch.setattr(kernel, "_FEWEST_COLUMNS", size)


# Blocks of four rows, of one class weight, and of five, which is neither all classes nor a multiple
# of the centres.
BLOCKS = pytest.mark.parametrize(("kept", "size"), [(True, 4), (False, 1), (False, 5)])


def assert_same_gradients(
    value: torch.Tensor,
    expected: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    close: tuple[float, float],
    gradients_close: tuple[float, float],
) -> None:
    """Compare losses and the gradients with respect to given leaves, within (rtol, atol)."""
    torch.testing.assert_close(value, expected, rtol=close[0], atol=close[1])
    for got, want in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(expected, leaves)):
        torch.testing.assert_close(got, want, rtol=gradients_close[0], atol=gradients_close[1])
