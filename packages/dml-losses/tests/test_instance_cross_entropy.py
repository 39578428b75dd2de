from __future__ import annotations

import pytest
import torch
from losses_support import references as reference
from losses_support import rows
from torch.autograd import grad

from dml_losses import InstanceCrossEntropy
from dml_losses.functional import instance_cross_entropy

LABELS = [
    [0, 0, 1, 1, 2, 2],  # 2 rows per class, as in Eq. 16-17
    [0, 0, 0, 1, 1, 1, 2, 2, 2],
    [3, 0, 3, 3, 7, 0, 5],  # shuffled, with unequal classes, and classes with a single row
    [0, 0, 0, 0],  # no negatives
    [0, 1, 2, 3],  # no positives
    [4],
]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("scale", [1.0, 16.0, 64.0])
@pytest.mark.parametrize("anchor", [False, True])
def test_reweighted_gradient_is_equation_15(labels: list[int], scale: float, anchor: bool) -> None:
    """Reweighting must not change the value; `test_pair_losses` also uses the equations as
    references.
    """
    x, y = rows(len(labels), 1).requires_grad_(), torch.tensor(labels)
    value = instance_cross_entropy(x, y, scale=scale, anchor_gradient=anchor)
    assert torch.equal(value, instance_cross_entropy(x, y, scale=scale, reweight=False))
    gradient = grad(value, x)[0]
    expected, _ = reference.instance_cross_entropy_gradient(x.detach(), y, scale, anchor=anchor)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("anchor", [False, True])
def test_no_row_of_a_gallery_is_omitted(anchor: bool) -> None:
    x, y = rows(5, 2).requires_grad_(), torch.tensor([2, 0, 1, 0, 9])
    g, z = rows(7, 3).requires_grad_(), torch.tensor([0, 1, 1, 3, 0, 1, 4])
    value = instance_cross_entropy(x, y, g, z, scale=8.0, anchor_gradient=anchor)
    expected = reference.instance_cross_entropy_value(x, y, 8.0, g, z)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    gradients = grad(value, (x, g), materialize_grads=True)  # a constant anchor has no gradient
    wanted = reference.instance_cross_entropy_gradient(
        x.detach(), y, 8.0, g.detach(), z, anchor=anchor
    )
    for gradient, want in zip(gradients, wanted):
        torch.testing.assert_close(gradient, want, rtol=1e-9, atol=1e-14)


def test_a_gallery_without_gradient_moves_the_anchor() -> None:
    x, y = rows(4, 4).requires_grad_(), torch.tensor([0, 1, 0, 1])
    g, z = rows(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    gradient = grad(instance_cross_entropy(x, y, g, z, scale=8.0), x)[0]
    expected, _ = reference.instance_cross_entropy_gradient(
        x.detach(), y, 8.0, g, z, anchor=True, others=False
    )
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-14)


def test_two_samples_a_class_reduce_to_equations_16_and_17() -> None:
    """An anchor pulls the only positive by 1/(2N), and pushes all negatives together by 1/(2N)."""
    scale, y = 16.0, torch.tensor([0, 0, 1, 1, 2, 2])
    x = rows(6, 6).requires_grad_()
    f, n = reference.unit(x.detach()), 6
    unit_gradient = torch.zeros_like(f)
    for a in range(n):
        i = a ^ 1
        negatives = [j for j in range(n) if j not in (a, i)]
        share = torch.softmax(torch.stack([scale * (f[a] @ f[j]) for j in negatives]), 0)
        unit_gradient[i] -= f[a] / (2 * n)  # Eq. 16
        for j, s in zip(negatives, share):
            unit_gradient[j] += (
                f[a] * s / (2 * n)
            )  # Eq. 17: p̂_j / (1 − p̂_i) is the share of the negatives
    gradient = grad(instance_cross_entropy(x, y, scale=scale), x)[0]
    torch.testing.assert_close(gradient, reference.through_the_norm(x.detach(), unit_gradient))


def test_weights_survive_probabilities_that_round_to_one() -> None:
    """If the scale is 1e4, every 1 − p̂ will underflow even in float64, and Eq. 13 as written is
    0/0.
    """
    x = torch.tensor(
        [[1.0, 0.0], [1.0, 0.01], [1.0, 0.05], [-1.0, 0.0], [-1.0, 0.01]], requires_grad=True
    )
    y = torch.tensor([0, 0, 0, 1, 1])
    value = instance_cross_entropy(x, y, scale=1e4)
    gradient = grad(value, x)[0]
    assert value == 0
    assert torch.isfinite(gradient).all()
    assert (gradient.norm(dim=1) > 0).all()


@pytest.mark.parametrize("reweight", [False, True])
def test_a_batch_of_several_blocks_is_each_anchor_against_the_others(reweight: bool) -> None:
    """300 rows are three blocks; an anchor with the other rows as a gallery is a single block."""
    x, y = rows(300, 7).requires_grad_(), torch.randint(40, (300,))
    options = {"scale": 8.0, "reweight": reweight, "anchor_gradient": True}
    value = instance_cross_entropy(x, y, **options)
    gradient, parts = torch.zeros_like(x), []
    num_positives = ((y[:, None] == y).sum(dim=1) - 1).double()
    for anchor in range(len(x)):
        others = torch.arange(len(x)) != anchor
        own, gallery = x[anchor : anchor + 1], x[others]
        part = instance_cross_entropy(own, y[anchor : anchor + 1], gallery, y[others], **options)
        parts.append(part.detach() * num_positives[anchor])
        # Eq. 13-15 count anchors; the derivative of the mean counts pairs.
        share = 1 / len(x) if reweight else num_positives[anchor] / num_positives.sum()
        gradient += share * grad(part, x)[0]
    torch.testing.assert_close(
        value, torch.stack(parts).sum() / num_positives.sum(), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(grad(value, x)[0], gradient, rtol=1e-9, atol=1e-15)


def test_an_empty_gallery_gives_a_zero_that_backpropagates() -> None:
    x, y = rows(3, 8).requires_grad_(), torch.tensor([0, 0, 1])
    value = instance_cross_entropy(x, y, rows(0, 9), torch.zeros(0, dtype=torch.int64))
    assert value == 0
    assert torch.equal(grad(value, x)[0], torch.zeros_like(x))


def test_half_precision_is_computed_in_float32() -> None:
    x, y = rows(12, 10).to(torch.bfloat16), torch.arange(12) // 3
    value = InstanceCrossEntropy()(x, y)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, InstanceCrossEntropy()(x.float(), y), rtol=0, atol=0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_raises(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale is .*; expected a finite number above 0"):
        InstanceCrossEntropy(scale=scale)
