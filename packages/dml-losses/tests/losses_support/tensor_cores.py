"""Multiply on a CPU as a GPU's tensor cores do."""

from __future__ import annotations

import pytest
import torch

from dml_losses.functional import products


def emulate_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Let the losses find tensor cores, also for small products; return the dtypes that are
    multiplied, a list that grows.
    """
    seen: list[torch.dtype] = []

    def multiply_halves(
        x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert x.dtype == y.dtype
        seen.append(x.dtype)
        return torch.mm(x.float(), y.float(), out=out)

    def add_halves_(
        sums: torch.Tensor, x: torch.Tensor, y: torch.Tensor, alpha: int, beta: int
    ) -> None:
        assert x.dtype == y.dtype
        seen.append(x.dtype)
        sums.addmm_(x.float(), y.float(), alpha=alpha, beta=beta)

    monkeypatch.setattr(products, "_FEWEST_MULTIPLICATIONS", 0)
    monkeypatch.setattr(products, "has_tensor_cores", lambda device: True)
    monkeypatch.setattr(products, "multiply_halves", multiply_halves)
    monkeypatch.setattr(products, "add_halves_", add_halves_)
    return seen
