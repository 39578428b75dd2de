from __future__ import annotations

import pytest
import torch
from losses_support import batch
from torch import nn
from torch.autograd import grad

from dml_losses import CrossBatchMemory, InstanceCrossEntropy, RankedListLoss

D = 5


@pytest.mark.parametrize(
    "loss", [InstanceCrossEntropy(), RankedListLoss()], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize("warmup", [0, 2])
def test_every_step_is_the_batch_and_the_newest_rows_before_it(
    loss: nn.Module, warmup: int
) -> None:
    memory, past, past_labels = (
        CrossBatchMemory(loss, 10, warmup),
        torch.zeros(0, D),
        torch.zeros(0).long(),
    )
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
            past, past_labels = (
                torch.cat((past, x.detach()))[-10:],
                torch.cat((past_labels, y))[-10:],
            )


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
    assert torch.equal(
        memory.queue.contents().embeddings, x.to(torch.promote_types(dtype, torch.float32))
    )
    resumed = CrossBatchMemory(InstanceCrossEntropy(), 10)
    resumed.load_state_dict(memory.state_dict())
    assert torch.equal(resumed(x, y), memory(x, y))


def test_loading_a_state_dict_of_a_different_capacity_raises() -> None:
    saved, other = (
        CrossBatchMemory(InstanceCrossEntropy(), 10),
        CrossBatchMemory(InstanceCrossEntropy(), 8),
    )
    saved(*batch(0))
    with pytest.raises(RuntimeError, match=r"capacity 10 .* this one has 8"):
        other.load_state_dict(saved.state_dict())
