from __future__ import annotations

import pytest
import torch
from torch.autograd import grad

from dml_losses import ArcFace, BroadFace, InstanceCrossEntropy, SoftTriple

C, D = 4, 5


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, D, generator=generator), torch.randint(0, C, (6,), generator=generator)


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
        moved = [e + e.norm() / w.norm() * (weights.detach()[c] - w) if compensate else e for e, c, w in past]
        rows = torch.stack([*moved, *x.detach()])
        labels = torch.tensor([*(c for _, c, _ in past), *y.tolist()])
        batch_loss, weights_loss = plain(x, y, weights.detach()), plain(rows, labels)
        torch.testing.assert_close(value, batch_loss + weights_loss, rtol=1e-5, atol=0)
        gradients = grad(value, (x, weights))
        torch.testing.assert_close(gradients[0], grad(batch_loss, x)[0])
        torch.testing.assert_close(gradients[1], grad(weights_loss, weights)[0], rtol=1e-4, atol=1e-6)
        if step >= 1:
            past += [(e, c, weights.detach()[c].clone()) for e, c in zip(x.detach(), y.tolist())]
            past = past[-10:]
        with torch.no_grad():
            weights.sub_(0.1 * gradients[1])


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 1e4), (torch.float32, 1e30)])
def test_long_embeddings_of_short_class_weights_leave_the_loss_finite(
    dtype: torch.dtype, size: float
) -> None:
    """The ratio of the two norms exceeds float16, and the square of the larger exceeds float32."""
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


@pytest.mark.parametrize("warmup", [0, 4])
def test_a_resumed_run_computes_the_same_bits(warmup: int) -> None:
    torch.manual_seed(0)
    straight = BroadFace(ArcFace(C, D), 10, warmup)
    for step in range(3):
        straight(*batch(step))
    resumed = BroadFace(ArcFace(C, D), 10, warmup)
    resumed.load_state_dict(straight.state_dict())
    for step in range(3, 8):
        assert torch.equal(resumed(*batch(step)), straight(*batch(step)))


def test_an_embedding_whose_class_had_no_direction_is_not_moved() -> None:
    broad = BroadFace(ArcFace(1, 2), 4)
    broad.class_weights.data.zero_()
    broad(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    broad.class_weights.data = torch.tensor([[0.0, 1.0]])
    plain = broad.loss
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([0])
    expected = plain(x, y) + plain(torch.tensor([[3.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 0]))
    assert torch.equal(broad(x, y), expected)


def test_evaluation_mode_stores_nothing() -> None:
    broad = BroadFace(ArcFace(C, D), 10).eval()
    broad(*batch(0))
    assert len(broad.queue) == 0
    assert broad.steps == 0


def test_given_class_weights_replace_its_own() -> None:
    given, own = BroadFace(ArcFace(C, D), 10), BroadFace(ArcFace(C, D), 10)
    own.class_weights.data = torch.randn(C, D, generator=torch.Generator().manual_seed(1))
    for step in range(3):
        assert torch.equal(given(*batch(step), own.class_weights), own(*batch(step)))


def test_the_loss_gets_rows_of_the_batchs_dtype() -> None:
    seen: list[torch.dtype] = []

    class Recording(ArcFace):
        def forward(self, embeddings, labels, class_weights=None):  # type: ignore[no-untyped-def]
            seen.append(embeddings.dtype)
            return super().forward(embeddings, labels, class_weights)

    broad = BroadFace(Recording(C, D), 10)  # the queue is in float32
    for step in range(2):
        x, y = batch(step)
        broad(x.to(torch.bfloat16), y)
    assert seen == [torch.bfloat16] * 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((InstanceCrossEntropy(), 10), TypeError, "InstanceCrossEntropy, which has no class_weights"),
        ((SoftTriple(C, D), 10), ValueError, "loss has 10 weights for each class; expected 1"),
        ((ArcFace(C, D), 0), ValueError, "capacity is 0; expected at least 1"),
        ((ArcFace(C, D), 10, -1), ValueError, "warmup_steps is -1; expected at least 0"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        BroadFace(*arguments)
