"""Losses make all tensors on the embeddings' device; fake tensors are used to check this when there is no accelerator.

Fake tensors are given a shape, a dtype and a device, but not data, and operations that mix devices fail as on real
devices. Tests marked `gpu` check the values.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from losses_support.registered import EVERY
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensorMode

CLASSES, DIM = 5, 6
# `torch.unique` isn't defined for fake tensors, and copying a module would read the tensors' memory.
NOT_FAKED = ("sampled-classes", "matryoshka of pairs")


def fakes_need_a_driver() -> bool:
    """Return whether fake tensors on a GPU need the driver, as for indexing in torch 2.8."""
    with FakeTensorMode(), torch.device("cuda"):
        rows = torch.randn(2, 3, requires_grad=True)
        try:
            rows[torch.zeros(1, dtype=torch.int64)]
        except RuntimeError:
            return True
    return False


@pytest.fixture(autouse=True)
def _see_inside_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the bodies of the losses' operators, which fake tensors would skip, and invent the numbers that they read."""

    def body(operator: CustomOpDef, *inputs: Any) -> Any:
        with torch.no_grad():
            return operator._init_fn(*inputs)

    monkeypatch.setattr(CustomOpDef, "__call__", body)
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: 2)
    monkeypatch.setattr(
        torch.Tensor, "nonzero", lambda self: torch.arange(len(self), device=self.device)[:, None]
    )


@pytest.mark.skipif(
    fakes_need_a_driver(), reason=f"torch {torch.__version__} indexes no fake tensor without a GPU's driver"
)
@pytest.mark.parametrize("name", [name for name in EVERY if name not in NOT_FAKED])
def test_a_loss_computes_on_the_device_of_the_embeddings(name: str) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        loss = EVERY[name](CLASSES, DIM)
        x, y = torch.randn(12, DIM, requires_grad=True), torch.zeros(12, dtype=torch.int64)
        for _ in range(4):  # memories are used from the second call on
            assert loss(x, y).device == x.device


def test_a_tensor_on_another_device_is_found() -> None:
    class Forgetful(nn.Module):
        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (embeddings * torch.ones(DIM, device="cpu")).sum()

    with FakeTensorMode(), pytest.raises(RuntimeError, match="cpu"):
        Forgetful()(torch.randn(12, DIM, device="cuda"), torch.zeros(12, dtype=torch.int64, device="cuda"))
