"""`torch.compile` takes every loss whole: `fullgraph=True` fails at the first graph break."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dml_losses as dml

PAIR_LOSSES = [dml.InstanceCrossEntropy(), dml.InstanceCrossEntropy(reweight=False), dml.RankedListLoss()]
CLASS_LOSSES = [
    dml.NormSoftmax(5, 6),
    dml.HeatedUpSoftmax(5, 6),
    dml.HeatedUpSoftmax(5, 6, feature_norm="batch"),
    dml.Softmax(5, 6),
    dml.VirtualSoftmax(5, 6),
    dml.CosFace(5, 6),
    dml.ArcFace(5, 6),
    dml.CurricularFace(5, 6),
    dml.ProxyNCA(5, 6),
    dml.ProxyAnchor(5, 6),
    dml.SoftTriple(5, 6),
]


@pytest.mark.parametrize("loss", [*PAIR_LOSSES, *CLASS_LOSSES], ids=repr)
def test_compiles_without_a_graph_break(loss: nn.Module) -> None:
    torch.compiler.reset()
    x, y = torch.randn(12, 6), torch.arange(12) % 5
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    _assert_same(compiled, loss, (x.requires_grad_(), y), x)


@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=repr)
def test_compiles_with_a_gallery(loss: nn.Module) -> None:
    torch.compiler.reset()
    x, y = torch.randn(12, 6), torch.arange(12) % 5
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    _assert_same(compiled, loss, (x.requires_grad_(), y, torch.randn(7, 6), torch.arange(7) % 3), x)


def _assert_same(
    compiled: nn.Module, loss: nn.Module, arguments: tuple[torch.Tensor, ...], x: torch.Tensor
) -> None:
    eager = copy.deepcopy(loss)  # a call may move the loss's own buffers
    value, expected = compiled(*arguments), eager(*arguments)
    torch.testing.assert_close(value, expected)
    gradient, wanted = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(gradient, wanted)
