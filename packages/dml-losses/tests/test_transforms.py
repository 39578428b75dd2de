"""Losses with `torch.func` and forward mode agree with autograd, or raise an error that should name
an alternative.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

import dml_losses as dml

# torch warns when forward mode is first used, and about the speed of vmap.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop because we have not yet implemented"
    ),
]

Y = torch.arange(12) % 5
PAIR_LOSSES = [
    dml.InstanceCrossEntropy(),
    dml.RankedListLoss(),
    dml.SmoothAP(),
    dml.SupCon(),
    dml.SigLIP(),
    dml.InfoNCE(),
]
OPERATORS = [
    *PAIR_LOSSES,
    dml.NormSoftmax(5, 6),
    dml.ArcFace(5, 6),
    dml.ProxyAnchor(5, 6),
    dml.CrossBatchMemory(dml.SupCon(), 8).eval(),
    dml.Matryoshka(dml.CosFace(5, 6), [2, 6]),
    dml.CurricularFace(5, 6).eval(),
]
PLAIN = [dml.Softmax(5, 6), dml.VirtualSoftmax(5, 6), dml.SoftTriple(5, 6)]


def gradient(loss: nn.Module, x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf, Y), leaf)[0]


@pytest.mark.parametrize("loss", OPERATORS, ids=repr)
def test_operators_raise_for_other_derivatives_than_backward(loss: nn.Module) -> None:
    x = torch.randn(12, 6)

    def forward_mode() -> None:
        with forward_ad.dual_level():
            loss(forward_ad.make_dual(x, torch.ones_like(x)), Y)

    for call in (
        lambda: grad(lambda x: loss(x, Y))(x),
        lambda: vmap(grad(lambda x: loss(x, Y)))(x[None]),
        lambda: jvp(lambda x: loss(x, Y), (x,), (torch.ones_like(x),)),
        lambda: grad(lambda x: loss(x.half(), Y))(x),
        lambda: vmap(lambda x: loss(x, Y))(x[None].clone().requires_grad_()),
        forward_mode,
    ):
        with pytest.raises(RuntimeError, match=r"use loss\.backward\(\) or torch\.autograd\.grad"):
            call()
    assert torch.isfinite(gradient(loss, x)).all()


@pytest.mark.parametrize("loss", PLAIN, ids=repr)
def test_plain_losses_have_all_derivatives(loss: nn.Module) -> None:
    x = torch.randn(12, 6)
    expected = gradient(loss, x)
    torch.testing.assert_close(grad(lambda x: loss(x, Y))(x), expected)
    _, tangent = jvp(lambda x: loss(x, Y), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(
        tangent, expected.sum(), rtol=1e-4, atol=1e-5
    )  # a sum of 72 float32 numbers
    both = torch.stack([x, 2 * x])
    values = vmap(lambda x: loss(x, Y))(both)
    # float32; products of different shapes are rounded differently.
    torch.testing.assert_close(
        values, torch.stack([loss(x, Y), loss(2 * x, Y)]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=repr)
def test_pair_losses_map_over_batches_without_gradients(loss: nn.Module) -> None:
    both = torch.randn(2, 12, 6)
    with torch.no_grad():
        values = vmap(lambda x: loss(x, Y))(both)
    torch.testing.assert_close(values, torch.stack([loss(each, Y) for each in both]))
