"""Test all losses with a memory: resuming, evaluation, given class weights, inference, bad
arguments.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from losses_support import batch
from torch import nn

from dml_losses import (
    ArcFace,
    BroadFace,
    CrossBatchMemory,
    InstanceCrossEntropy,
    MemVir,
    NormSoftmax,
    SoftTriple,
)

C, D = 4, 5


def norm_softmax() -> nn.Module:
    torch.manual_seed(0)
    return NormSoftmax(C, D)


# Makers of losses, given the number of warm-up steps.
MAKE: dict[str, Callable[[int], nn.Module]] = {
    "memvir": lambda warmup: MemVir(norm_softmax(), 2, 1, warmup),
    "broad-face": lambda warmup: BroadFace(norm_softmax(), 10, warmup),
    "cross-batch-memory": lambda warmup: CrossBatchMemory(InstanceCrossEntropy(), 10, warmup),
}
memories = pytest.mark.parametrize("name", MAKE)


@memories
@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_a_resumed_run_computes_the_same_bits(name: str, warmup: int) -> None:
    straight, broken, resumed = (MAKE[name](warmup) for _ in range(3))
    values = [straight(*batch(step)) for step in range(9)]
    for step in range(4):
        broken(*batch(step))
    resumed.load_state_dict(broken.state_dict())
    for step in range(4, 9):
        assert torch.equal(resumed(*batch(step)), values[step])


@memories
def test_evaluation_mode_stores_nothing(name: str) -> None:
    loss = MAKE[name](0)
    fresh = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
    for mode in (False, True):  # before and after the first step
        loss.train(mode)(*batch(0))
        before = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
        loss.eval()(*batch(1))
        assert all(torch.equal(tensor, before[key]) for key, tensor in loss.state_dict().items())
        if not mode:
            assert before.keys() == fresh.keys()
            assert all(map(torch.equal, before.values(), fresh.values()))


@pytest.mark.parametrize("name", ["memvir", "broad-face"])
def test_given_class_weights_are_used_and_stored(name: str) -> None:
    given, own = MAKE[name](0), MAKE[name](0)
    other = torch.randn(C, D, generator=torch.Generator().manual_seed(1))
    own.class_weights.data = other
    for step in range(5):
        assert torch.equal(given(*batch(step), other), own(*batch(step)))
    for (key, stored), expected in zip(given.named_buffers(), own.buffers(), strict=True):
        assert torch.equal(stored, expected), key


@memories
def test_a_memory_that_was_used_in_inference_mode_trains_on(name: str) -> None:
    loss = MAKE[name](0)
    with torch.inference_mode():
        loss(*batch(0))
    for step in (1, 2):
        x, y = batch(step)
        loss(x.requires_grad_(), y).backward()
        assert x.grad is not None


class WithoutGallery(nn.Module):
    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return embeddings.sum()


L, P = norm_softmax(), InstanceCrossEntropy()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BroadFace(P, 10), TypeError, "InstanceCrossEntropy, which has no class_weights"),
        (lambda: BroadFace(SoftTriple(C, D), 10), ValueError,
         "loss has 10 weights for each class; expected 1"),
        (lambda: BroadFace(ArcFace(C, D), 0), ValueError, "capacity is 0; expected at least 1"),
        (lambda: BroadFace(ArcFace(C, D), 10, -1), ValueError,
         "warmup_steps is -1; expected at least 0"),
        (lambda: CrossBatchMemory(L, 10), TypeError,
         "loss is NormSoftmax, a class loss; expected a pair loss"),
        (lambda: CrossBatchMemory(WithoutGallery(), 10), TypeError,
         "WithoutGallery, whose forward takes no gallery"),
        (lambda: CrossBatchMemory(P, 0), ValueError, "capacity is 0; expected at least 1"),
        (lambda: CrossBatchMemory(P, 10, -1), ValueError,
         "warmup_steps is -1; expected at least 0"),
        (lambda: MemVir(P, 1, 1), TypeError, "InstanceCrossEntropy, which has no class_weights"),
        (lambda: MemVir(L, -1, 1), ValueError, "num_steps is -1; expected at least 0"),
        (lambda: MemVir(L, 1, -1), ValueError, "margin is -1; expected at least 0"),
        (lambda: MemVir(L, 1, 1, -1), ValueError, "warmup_steps is -1; expected at least 0"),
        (lambda: MemVir(L, 1.5, 1), TypeError, r"num_steps is 1\.5; expected an integer"),
        (lambda: MemVir(L, 1, 1, 0, "int8"), ValueError, "queue_dtype is 'int8'"),
        (lambda: MemVir(L, 1, 1, 5, warmup_epochs=2.0, steps_per_epoch=3), ValueError,
         "warmup_steps is 5 and warmup_epochs"),
        (lambda: MemVir(L, 1, 1, warmup_epochs=2.0), ValueError, "without steps_per_epoch"),
        (lambda: MemVir(L, 1, 1, warmup_epochs=-1.0, steps_per_epoch=3), ValueError,
         "warmup_epochs is -1"),
    ],
)  # fmt: skip
def test_a_wrong_argument_raises(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()
