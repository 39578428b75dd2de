from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from losses_support import BLOCKS, assert_same_gradients, rows, use_blocks
from losses_support import references as reference
from torch.autograd import grad

from dml_losses import NormSoftmax
from dml_losses.functional import heated_up_softmax, norm_softmax
from dml_losses.functional.classes import Virtual


def with_past(w: torch.Tensor, seed: int, count: int) -> Virtual:
    """Join class weights with constants: four additional classes, and `count` rows that belong to
    these classes.
    """
    labels = len(w) + torch.arange(count) % 4
    return Virtual(w, rows(count, seed), labels, (rows(1, seed + 1), rows(3, seed + 2)))


@BLOCKS
def test_constants_are_joined_rows_and_classes(
    kept: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, y = rows(9, 2).requires_grad_(), rows(7, 3).requires_grad_(), torch.arange(9) % 7
    virtual = with_past(w, 80, 17)
    expected = norm_softmax(*virtual.join(x, y))
    use_blocks(monkeypatch, kept, size)
    assert_same_gradients(norm_softmax(x, y, virtual), expected, (x, w), (1e-13, 0), (1e-10, 1e-15))


@BLOCKS
def test_passes_save_nothing_that_grows_with_rows_times_classes(
    kept: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, kept, size)
    shapes: list[torch.Size] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        norm_softmax(rows(9, 2).requires_grad_(), torch.arange(9) % 7, rows(7, 3))
    assert ((9, 7) in shapes) == kept
    assert all(shape.numel() <= 9 * 5 for shape in shapes if shape != (9, 7))


@BLOCKS
def test_the_gradient_of_one_side_does_not_need_the_other(
    kept: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, kept, size)
    x, w, y = rows(9, 2).requires_grad_(), rows(7, 3).requires_grad_(), torch.arange(9) % 7
    both = grad(norm_softmax(x, y, w), (x, w))
    assert torch.equal(grad(norm_softmax(x, y, w.detach()), x)[0], both[0])
    assert torch.equal(grad(norm_softmax(x.detach(), y, w), w)[0], both[1])


@pytest.mark.parametrize("loss", [norm_softmax, partial(heated_up_softmax, feature_norm="batch")])
def test_constants_get_no_gradient_and_may_have_other_dtypes(
    loss: Callable[..., torch.Tensor],
) -> None:
    x, w, y = rows(6, 2).requires_grad_(), rows(9, 3).requires_grad_(), torch.arange(6)
    wide = with_past(w, 30, 5)
    embeddings, further = (
        wide.embeddings.float().requires_grad_(),
        tuple(w.float() for w in wide.further),
    )
    narrow = Virtual(w, embeddings, wide.labels.int(), further)
    value = loss(x, y, narrow)
    torch.testing.assert_close(value, loss(x, y, wide), rtol=1e-6, atol=0)  # float32
    assert grad(value, narrow.embeddings, allow_unused=True) == (None,)


def test_value_without_gradient_is_the_same() -> None:
    x, w, y = rows(6, 4), rows(4, 5).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1])
    with torch.no_grad():
        value = norm_softmax(x, y, w)
    assert torch.equal(value, norm_softmax(x, y, w).detach())


@BLOCKS
def test_backward_can_run_twice(kept: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, kept, size)
    x, w, y = (
        rows(6, 6).requires_grad_(),
        rows(4, 7).requires_grad_(),
        torch.tensor([0, 1, 2, 3, 0, 1]),
    )
    value = norm_softmax(x, y, w)
    first = grad(value, (x, w), retain_graph=True)
    for one, other in zip(first, grad(value * 2, (x, w))):
        torch.testing.assert_close(other, one * 2, rtol=1e-14, atol=0)


def test_a_zero_class_weight_is_at_cosine_zero_and_stays() -> None:
    x, w, y = rows(3, 8).requires_grad_(), rows(4, 9), torch.tensor([0, 1, 2])
    w[1] = 0
    w.requires_grad_()
    value = norm_softmax(x, y, w)
    expected = reference.norm_softmax_value(x, y, w.detach(), 0.05)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    assert torch.equal(grad(value, w)[0][1], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_gradient_beyond_the_class_weights_dtype_is_clamped_to_it(dtype: torch.dtype) -> None:
    """The gradient is proportional to 1/norm, and the norm is the dtype's smallest normal
    number.
    """
    tiny = torch.finfo(dtype).smallest_normal
    w = torch.tensor([[tiny, 0], [0, tiny]], dtype=dtype, requires_grad=True)
    x = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    gradient = grad(norm_softmax(x, torch.tensor([1]), w, temperature=1e-3), w)[0]
    assert gradient.abs().max() == torch.finfo(dtype).max


def test_weights_start_uniform_within_one_over_root_dim() -> None:
    weights = NormSoftmax(300, 64).class_weights
    assert weights.shape == (300, 64)
    assert weights.requires_grad
    assert weights.abs().max() <= 1 / 8
    # This is a uniform distribution's standard deviation; 0.002 is 5 standard errors.
    assert abs(weights.std().item() - 1 / 8 / 3**0.5) < 0.002
