from __future__ import annotations

import pytest
import torch
from losses_support import batch, recording
from torch.autograd import grad

from dml_losses import ArcFace, BroadFace

C, D = 4, 5


@pytest.mark.parametrize("compensate", [True, False])
def test_every_step_is_the_batch_alone_and_the_weights_with_the_past(compensate: bool) -> None:
    torch.manual_seed(0)
    plain = ArcFace(C, D, scale=8.0)
    broad = BroadFace(plain, capacity=10, warmup_steps=1, compensate=compensate)
    past: list[tuple[torch.Tensor, int, torch.Tensor]] = []
    for step in range(7):
        x, y = batch(step)
        x.requires_grad_()
        value, weights = broad(x, y), plain.class_weights
        moved = [
            e + e.norm() / w.norm() * (weights.detach()[c] - w) if compensate else e
            for e, c, w in past
        ]
        rows = torch.stack([*moved, *x.detach()])
        labels = torch.tensor([*(c for _, c, _ in past), *y.tolist()])
        batch_loss, weights_loss = plain(x, y, weights.detach()), plain(rows, labels)
        torch.testing.assert_close(value, batch_loss + weights_loss, rtol=1e-5, atol=0)
        gradients = grad(value, (x, weights))
        torch.testing.assert_close(gradients[0], grad(batch_loss, x)[0])
        torch.testing.assert_close(
            gradients[1], grad(weights_loss, weights)[0], rtol=1e-4, atol=1e-6
        )
        if step >= 1:
            past += [(e, c, weights.detach()[c].clone()) for e, c in zip(x.detach(), y.tolist())]
            past = past[-10:]
        with torch.no_grad():
            weights.sub_(0.1 * gradients[1])


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 1e4), (torch.float32, 1e30)])
def test_long_embeddings_of_short_class_weights_leave_the_loss_finite(
    dtype: torch.dtype, size: float
) -> None:
    """The ratio of the norms exceeds float16's range, and the square of the larger norm exceeds
    float32's.
    """
    broad = BroadFace(ArcFace(C, D), 10).to(dtype)
    with torch.no_grad():
        broad.class_weights.mul_(1e-2)
    x, y = batch(0)
    for _ in range(2):
        leaf = (size * x.clamp(-2, 2)).to(dtype).requires_grad_()
        value = broad(leaf, y)
        assert torch.isfinite(value)
        for gradient in grad(value, (leaf, broad.class_weights)):
            assert torch.isfinite(gradient).all()


def test_an_embedding_whose_class_had_no_direction_is_not_moved() -> None:
    broad = BroadFace(ArcFace(1, 2), 4)
    broad.class_weights.data.zero_()
    broad(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    broad.class_weights.data = torch.tensor([[0.0, 1.0]])
    plain = broad.loss
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([0])
    expected = plain(x, y) + plain(torch.tensor([[3.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 0]))
    assert torch.equal(broad(x, y), expected)


def test_the_loss_gets_rows_of_the_batchs_dtype() -> None:
    seen, loss = recording(ArcFace, lambda embeddings, class_weights: embeddings.dtype)
    broad = BroadFace(loss(C, D), 10)  # the queue is in float32
    for step in range(2):
        x, y = batch(step)
        broad(x.to(torch.bfloat16), y)
    assert seen == [torch.bfloat16] * 4
