from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import grad

from dml_losses import BroadFace, CrossBatchMemory, InstanceCrossEntropy, MemVir, NormSoftmax, RankedListLoss

D = 5


def batch(step: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, D, generator=generator), torch.randint(0, 3, (size,), generator=generator)


@pytest.mark.parametrize(
    "loss", [InstanceCrossEntropy(), RankedListLoss()], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize("warmup", [0, 2])
def test_every_step_is_the_batch_and_the_newest_rows_before_it(loss: nn.Module, warmup: int) -> None:
    memory, past, past_labels = CrossBatchMemory(loss, 10, warmup), torch.zeros(0, D), torch.zeros(0).long()
    for step in range(8):
        x, y = batch(step)
        x.requires_grad_()
        expected = loss(x, y)
        if len(past):
            expected = expected + loss(x, y, past, past_labels)
        value = memory(x, y)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(grad(value, x), grad(expected, x))
        if step >= warmup:
            past, past_labels = torch.cat((past, x.detach()))[-10:], torch.cat((past_labels, y))[-10:]


def test_a_gallery_is_used_beside_the_memory() -> None:
    loss = InstanceCrossEntropy()
    memory = CrossBatchMemory(loss, 10)
    (x, y), (g, z) = batch(0), batch(1)
    assert torch.equal(memory(x, y, g, z), loss(x, y, g, z))
    assert torch.equal(memory(x, y, g, z), loss(x, y, g, z) + loss(x, y, x, y))


def test_an_emptied_memory_is_ignored() -> None:
    class NeedsRows(nn.Module):
        def forward(self, embeddings, labels, gallery=None, gallery_labels=None):  # type: ignore[no-untyped-def]
            return (embeddings if gallery is None else gallery).max()

    memory = CrossBatchMemory(NeedsRows(), 10)
    x, y = batch(0)
    memory(x, y)
    memory.queue.reset()
    assert memory(x, y) == x.max()


def test_a_resumed_run_computes_the_same_bits() -> None:
    straight = CrossBatchMemory(InstanceCrossEntropy(), 10, 1)
    values = [straight(*batch(step)) for step in range(7)]
    broken = CrossBatchMemory(InstanceCrossEntropy(), 10, 1)
    for step in range(4):
        broken(*batch(step))
    resumed = CrossBatchMemory(InstanceCrossEntropy(), 10, 1)
    resumed.load_state_dict(broken.state_dict())
    for step in range(4, 7):
        assert torch.equal(resumed(*batch(step)), values[step])


def test_the_memory_is_made_where_the_embeddings_are() -> None:
    memory = CrossBatchMemory(InstanceCrossEntropy(), 10)
    memory(torch.zeros(2, D, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta"))
    assert {buffer.device.type for buffer in memory.queue.buffers()} == {"meta"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_memory_holds_the_embeddings_exactly(dtype: torch.dtype) -> None:
    memory = CrossBatchMemory(InstanceCrossEntropy(), 10)
    x, y = batch(0)
    x = x.to(dtype)
    memory(x, y)
    assert torch.equal(memory.queue.contents().embeddings, x.to(torch.promote_types(dtype, torch.float32)))
    resumed = CrossBatchMemory(InstanceCrossEntropy(), 10)
    resumed.load_state_dict(memory.state_dict())
    assert torch.equal(resumed(x, y), memory(x, y))


def test_evaluation_mode_stores_nothing() -> None:
    memory = CrossBatchMemory(InstanceCrossEntropy(), 10).eval()
    memory(*batch(0))
    assert memory.queue is None
    assert memory.steps == 0


def test_a_state_dict_of_another_capacity_is_refused() -> None:
    saved, other = CrossBatchMemory(InstanceCrossEntropy(), 10), CrossBatchMemory(InstanceCrossEntropy(), 8)
    saved(*batch(0))
    with pytest.raises(RuntimeError, match=r"capacity 10 .* this one has 8"):
        other.load_state_dict(saved.state_dict())


class WithoutGallery(nn.Module):
    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return embeddings.sum()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((NormSoftmax(3, D), 10), TypeError, "loss is NormSoftmax, a class loss; expected a pair loss"),
        ((WithoutGallery(), 10), TypeError, "loss is WithoutGallery, whose forward takes no gallery"),
        ((InstanceCrossEntropy(), 0), ValueError, "capacity is 0; expected at least 1"),
        ((InstanceCrossEntropy(), 10, -1), ValueError, "warmup_steps is -1; expected at least 0"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        CrossBatchMemory(*arguments)


@pytest.mark.parametrize(
    "loss",
    [
        CrossBatchMemory(InstanceCrossEntropy(), 16),
        MemVir(NormSoftmax(4, 5), 1, 0),
        BroadFace(NormSoftmax(4, 5), 16),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_memory_that_was_used_in_inference_mode_trains_on(loss: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(6, 5, generator=generator).requires_grad_() for _ in range(3)]
    labels = torch.arange(6) % 3
    with torch.inference_mode():
        loss(batches[0].detach(), labels)
    for batch in batches[1:]:
        loss(batch, labels).backward()
        assert batch.grad is not None
