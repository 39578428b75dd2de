"""Losses only make tensors on the embeddings' device, which fake tensors can check without an accelerator.

Fake tensors have a shape, a dtype and a device but no data, and operations that mix devices fail like on real devices.
To check values, use the tests marked `gpu`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from losses_support.registered import REGISTERED, build
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensorMode

import dml_losses as dml

CLASSES, DIM = 5, 6
LOSSES: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(build, name, CLASSES, DIM) for name in REGISTERED},
    "instance-cross-entropy, plain": lambda: dml.InstanceCrossEntropy(reweight=False),
    "triplet, all": lambda: dml.Triplet("batch-all"),
    "info-nce, over ranks": lambda: dml.InfoNCE(over_ranks=True),
    "siglip, over ranks": lambda: dml.SigLIP(over_ranks=True),
    "heated-up-softmax, batch": lambda: dml.HeatedUpSoftmax(CLASSES, DIM, feature_norm="batch"),
    "memvir": lambda: dml.MemVir(dml.NormSoftmax(CLASSES, DIM), 2, 0),
    "memvir, queue on the CPU": lambda: dml.MemVir(dml.NormSoftmax(CLASSES, DIM), 2, 0, queue_on_cpu=True),
    "memvir around proxy-anchor": lambda: dml.MemVir(dml.ProxyAnchor(CLASSES, DIM), 2, 0),
    "matryoshka": lambda: dml.Matryoshka(dml.ArcFace(CLASSES, DIM), [2, DIM]),
    "cross-batch-memory": lambda: dml.CrossBatchMemory(dml.InstanceCrossEntropy(), capacity=12),
    "broad-face": lambda: dml.BroadFace(dml.ArcFace(CLASSES, DIM), capacity=12),
    "global-batch": lambda: dml.GlobalBatch(dml.RankedListLoss()),
}


def fakes_need_a_driver() -> bool:
    """Tell whether fake tensors on a GPU need a driver, as they do when torch 2.8 indexes them."""
    with FakeTensorMode(), torch.device("cuda"):
        rows = torch.randn(2, 3, requires_grad=True)
        try:
            rows[torch.zeros(1, dtype=torch.int64)]
        except RuntimeError:
            return True
    return False


@pytest.fixture(autouse=True)
def _see_inside_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the bodies of the losses' operators, which fake tensors would skip, with made-up numbers if they read any."""

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
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_computes_on_the_device_of_the_embeddings(name: str) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        loss = LOSSES[name]()
        x, y = torch.randn(12, DIM, requires_grad=True), torch.zeros(12, dtype=torch.int64)
        for _ in range(4):  # memories are used from the second call on
            assert loss(x, y).device == x.device


def test_a_tensor_on_another_device_is_found() -> None:
    class Forgetful(nn.Module):
        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (embeddings * torch.ones(DIM, device="cpu")).sum()

    with FakeTensorMode(), pytest.raises(RuntimeError, match="cpu"):
        Forgetful()(torch.randn(12, DIM, device="cuda"), torch.zeros(12, dtype=torch.int64, device="cuda"))
