"""AdaFace: margins that depend on the embedding's length, and moving statistics of the length."""

from __future__ import annotations

import math

import pytest
import torch
from losses_support import assert_same_gradients, rows
from losses_support import references as reference

from dml_losses import AdaFace, MemVir
from dml_losses.functional import ada_face, cos_face

S = 2 * math.log(3)  # e^{S/2} = 3


def statistics(mean: float, std: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)


@pytest.mark.parametrize("margin", [0.4, 1.5])
@pytest.mark.parametrize("std", [0.5, 0.0, 20.0])  # with 0, all q are −1 or 1
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_value_and_gradients_are_those_of_the_equation(
    classes: int, std: float, margin: float
) -> None:
    x, w = rows(12, 0), rows(classes, 1).requires_grad_()
    y = torch.arange(12) % classes
    x[0] = (
        2.0 * w.detach()[y[0]] + 1e-3
    )  # close to the class's direction: θ − m·q is below 0 if q is 1
    x[1] = -0.1 * w.detach()[y[1]] + 1e-3  # nearly opposite and short
    x[2] *= 1e3  # longer than the limit
    x.requires_grad_()
    value = ada_face(x, y, w, *statistics(2.0, std), scale=8.0, margin=margin)
    expected = reference.ada_face_value(x, y, w, 2.0, std, 8.0, margin, 0.333)
    assert_same_gradients(value, expected, (x, w), (1e-10, 1e-12), (1e-7, 1e-9))


def test_long_and_short_embeddings_have_their_margins_by_hand() -> None:
    """Lengths 3, 2 and 1, with μ = 2 and σ = h/2, give q = 1, 0 and −1 (limited); the class is at
    60°, m = 30°.
    """
    y, w = torch.tensor([0]), torch.tensor([[0.5, 0.75**0.5], [0.0, 1.0]], dtype=torch.float64)
    m = math.pi / 6
    true = {3.0: math.cos(m) - 2 * m, 2.0: 0.5 - m, 1.0: math.cos(3 * m)}
    for length, phi in true.items():
        x = torch.tensor([[length, 0.0]], dtype=torch.float64)
        value = ada_face(x, y, w, *statistics(2.0, 0.1), scale=S, margin=m, concentration=0.2)
        assert value.item() == pytest.approx(math.log(1 + math.exp(-S * phi)), rel=1e-12)


def test_without_concentration_it_is_cos_face() -> None:
    x, y, w = rows(9, 2), torch.arange(9) % 4, rows(4, 3)
    value = ada_face(x, y, w, *statistics(0.3, 0.2), margin=0.35, concentration=0.0)
    torch.testing.assert_close(value, cos_face(x, y, w, margin=0.35), rtol=1e-12, atol=0)


def test_the_statistics_move_in_training_before_their_use() -> None:
    loss = AdaFace(4, 5, momentum=0.25).double()
    x, y = 30 * rows(6, 4), torch.arange(6) % 4
    norms = x.norm(dim=1).clamp(max=100)
    value = loss(x, y)
    mean, std = 0.75 * 20 + 0.25 * norms.mean(), 0.75 * 100 + 0.25 * norms.std()
    torch.testing.assert_close(loss.norm_mean, mean)
    torch.testing.assert_close(loss.norm_std, std)
    expected = ada_face(x, y, loss.class_weights, mean, std)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    loss.eval()(x, y)
    torch.testing.assert_close(loss.norm_mean, mean)


def test_a_batch_of_one_moves_the_mean_alone() -> None:
    loss = AdaFace(4, 5, momentum=0.25)
    loss(torch.ones(1, 5), torch.tensor([2]))
    assert loss.norm_mean != 20
    assert loss.norm_std == 100


def test_memvirs_virtual_rows_have_margins_of_their_own_lengths() -> None:
    loss = MemVir(AdaFace(4, 5, scale=8.0, momentum=0.0).double(), num_steps=1, margin=0)
    inner = loss.loss
    inner.norm_mean.fill_(2.0)
    inner.norm_std.fill_(0.5)
    first, second, y = rows(6, 9), rows(6, 10), torch.arange(6) % 4
    loss(first, y)
    value = loss(second, y)
    weights = inner.class_weights.detach()
    joined = reference.ada_face_value(
        torch.cat((second, first.float().double())),
        torch.cat((y, y + 4)),
        torch.cat((weights, weights.float().double())),  # the queue is in float32
        2.0, 0.5, 8.0, 0.4, 0.333,
    )  # fmt: skip
    torch.testing.assert_close(value, joined, rtol=1e-7, atol=0)
