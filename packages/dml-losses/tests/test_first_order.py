"""Losses of torch operations have second derivatives; losses with precomputed gradients raise an
error.
"""

from __future__ import annotations

import pytest
import torch
from losses_support.registered import REGISTERED, build
from torch import nn
from torch.autograd import grad, gradgradcheck

import dml_losses as dml

C, D, B = 4, 5, 6
X = torch.randn(B, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 0, 1, 1, 2, 3])
PLAIN = ("softmax", "virtual-softmax", "soft-triple", "koleo")


@pytest.mark.parametrize(
    "loss",
    [
        *(build(name, C, D).double() for name in REGISTERED if name not in PLAIN),
        dml.RankedListLoss(query_weights="total"),
        dml.MemVir(dml.NormSoftmax(C, D), 1, 0).double(),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_second_derivative_of_a_precomputed_gradient_raises(loss: nn.Module) -> None:
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="only has first derivatives, but create_graph=True"):
        grad(loss(x, Y), x, create_graph=True)
    assert grad(loss(x, Y), x)[0].isfinite().all()  # the first derivative still exists


@pytest.mark.parametrize("name", PLAIN)
def test_losses_of_torch_operations_have_second_derivatives(name: str) -> None:
    loss = build(name, C, D).double()
    assert gradgradcheck(lambda x: loss(x, Y), X.clone().requires_grad_())
