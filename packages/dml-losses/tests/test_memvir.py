from __future__ import annotations

import logging

import pytest
import torch
from losses_support import batch, recording
from losses_support.registered import CLASS_LOSSES, build
from torch import nn
from torch.autograd import grad

import dml_losses as dml
from dml_losses import MemVir, NormSoftmax

C, D = 4, 5


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return VARIANTS[name]() if name in VARIANTS else build(name, C, D)


VARIANTS = {
    "heated-up-batch": lambda: dml.HeatedUpSoftmax(C, D, feature_norm="batch"),
    "proxy-nca with the positive": lambda: dml.ProxyNCA(
        C, D, scale=12.0, positive_in_denominator=True
    ),
}
# AdaFace and Sub-centre ArcFace (virtual rows with lengths and centres) are tested in separate
# files.
LOSSES = [
    *VARIANTS,
    *(name for name in CLASS_LOSSES if name not in ("ada-face", "sub-center-arc-face")),
]


def counting() -> tuple[list[int], type[nn.Module]]:
    """Return the list of the numbers of classes by call, and the loss that records the numbers."""
    return recording(NormSoftmax, lambda embeddings, class_weights: len(class_weights))


class AlgorithmOne:
    """MemVir's Algorithm 1 with lists, newest first; the loss is given all rows and all classes in
    joined tensors.
    """

    def __init__(self, loss: nn.Module, num_steps: int, margin: int, warmup: int) -> None:
        self.loss, self.n, self.m, self.warmup, self.step = loss, num_steps, margin, warmup, 0
        self.queue: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        weights, xs, ys = [self.loss.class_weights], [x], [y]
        current = (x.detach().clone(), y.clone(), self.loss.class_weights.detach().clone())
        if self.step >= self.warmup:
            for index in range(self.m, len(self.queue), self.m + 1):
                past_x, past_y, past_w = self.queue[index]
                ys.append(past_y + C * len(weights))
                weights.append(past_w)
                xs.append(past_x)
            self.queue.insert(0, current)
            del self.queue[self.n * (self.m + 1) :]
        self.step += 1
        return self.loss(torch.cat(xs), torch.cat(ys), torch.cat(weights)), C * len(weights)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("num_steps", "margin", "warmup"), [(2, 1, 2), (3, 0, 0), (1, 3, 1)])
def test_every_step_is_that_of_algorithm_1(
    name: str, num_steps: int, margin: int, warmup: int
) -> None:
    fast, slow = MemVir(make(name), num_steps, margin, warmup), make(name)
    reference = AlgorithmOne(slow, num_steps, margin, warmup)
    for step in range(12):
        x, y = batch(step, size=6 - step % 2)  # every second batch is short
        x.requires_grad_()
        value, (expected, _) = fast(x, y), reference(x, y)
        torch.testing.assert_close(
            value, expected, rtol=1e-5, atol=1e-6
        )  # float32, other summation order
        gradients = grad(value, (x, fast.class_weights))
        wanted = grad(expected, (x, slow.class_weights))
        for gradient, want in zip(gradients, wanted):
            torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-5)
        with torch.no_grad():  # move the weights as an optimizer would
            fast.class_weights.sub_(0.1 * wanted[1])
            slow.class_weights.sub_(0.1 * wanted[1])


@pytest.mark.parametrize(
    ("num_steps", "margin", "warmup"), [(2, 1, 2), (3, 0, 0), (1, 3, 1), (0, 2, 1)]
)
def test_classes_are_added_at_the_pace_of_equation_4(
    num_steps: int, margin: int, warmup: int
) -> None:
    seen, inner = counting()
    loss = MemVir(inner(C, D), num_steps, margin, warmup)
    for step in range(14):
        loss(*batch(step))
    equation_4 = [
        C if i < warmup else C * (min((i - warmup) // (margin + 1), num_steps) + 1)
        for i in range(14)
    ]
    assert seen == equation_4


def test_a_loss_without_virtual_gets_the_dtypes_of_the_batch_and_its_weights() -> None:
    seen, inner = recording(
        NormSoftmax, lambda embeddings, class_weights: (embeddings.dtype, class_weights.dtype)
    )
    loss = MemVir(inner(C, D).to(torch.float16), 2, 0)  # the queue is in float32
    for step in range(4):
        x, y = batch(step)
        loss(x.to(torch.bfloat16), y)
    assert seen == [(torch.bfloat16, torch.float16)] * 4


def test_a_bfloat16_queue_is_half_the_memory_and_nearly_the_value() -> None:
    wide, narrow = (
        MemVir(make("norm-softmax"), 2, 0),
        MemVir(make("norm-softmax"), 2, 0, queue_dtype="bfloat16"),
    )
    assert narrow.queue_bytes * 2 == wide.queue_bytes == 2 * C * D * 4
    for step in range(5):
        # The queued rows have eight bits of mantissa, and the temperature is 0.05.
        torch.testing.assert_close(narrow(*batch(step)), wide(*batch(step)), rtol=0.05, atol=0)


@pytest.mark.parametrize("name", ["norm-softmax", "proxy-anchor"])
def test_a_bfloat16_queue_is_read_under_a_float16_autocast(name: str) -> None:
    plain, cast = (MemVir(make(name), 2, 0, queue_dtype="bfloat16") for _ in range(2))
    for step in range(4):
        with torch.autocast("cpu", dtype=torch.float16):
            value = cast(*batch(step))
        assert torch.equal(value, plain(*batch(step)))


def test_a_queue_on_the_cpu_stays_there() -> None:
    moved = MemVir(make("norm-softmax"), 2, 0, queue_on_cpu=True).to("meta")
    for loss in (moved, MemVir(make("norm-softmax").to("meta"), 2, 0, queue_on_cpu=True)):
        assert loss.class_weights.device.type == "meta"
        assert {
            getattr(loss, f"queue_{name}").device.type
            for name in ("embeddings", "labels", "weights")
        } == {"cpu"}
        assert set(loss.state_dict()) == set(MemVir(make("norm-softmax"), 2, 0).state_dict())


@pytest.mark.parametrize(
    ("num_steps", "level", "text"),
    [
        (2, logging.INFO, "8 copies of the class weights: 0.25 GiB"),
        (8, logging.WARNING, "32 copies of the class weights: 1.00 GiB"),
    ],
)
def test_memory_is_logged_before_its_allocation_as_a_warning_from_one_gibibyte(
    caplog: pytest.LogCaptureFixture, num_steps: int, level: int, text: str
) -> None:
    with caplog.at_level(logging.INFO, logger="dml_losses.memvir"), torch.device("meta"):
        MemVir(NormSoftmax(2**13, 2**10), num_steps, 3)  # 2**25 bytes
    (record,) = caplog.records
    assert record.levelno == level
    assert text in record.getMessage()


def test_loading_a_state_dict_of_a_different_capacity_raises() -> None:
    with pytest.raises(
        RuntimeError, match=r"4 steps of weights \(4, 5\); this one holds 2 of \(4, 5\)"
    ):
        MemVir(make("norm-softmax"), 2, 0).load_state_dict(
            MemVir(make("norm-softmax"), 2, 1).state_dict()
        )


@pytest.mark.parametrize(
    ("epochs", "steps_per_epoch", "steps"), [(50.0, 62, 3100), (0.5, 63, 32), (0.0, 10, 0)]
)
def test_a_warm_up_in_epochs_is_rounded_to_steps(
    epochs: float, steps_per_epoch: int, steps: int
) -> None:
    loss = MemVir(make("softmax"), 1, 1, warmup_epochs=epochs, steps_per_epoch=steps_per_epoch)
    assert loss.warmup_steps == steps


@pytest.mark.parametrize(
    ("num_steps", "margin", "warmup", "first"), [(2, 1, 6, 6), (2, 1, 2, 4), (3, 0, 0, 3)]
)
def test_without_step_pacing_all_virtual_classes_join_at_once(
    num_steps: int, margin: int, warmup: int, first: int
) -> None:
    seen, inner = counting()
    loss = MemVir(inner(C, D), num_steps, margin, warmup, step_pacing=False)
    for step in range(12):
        loss(*batch(step))
    assert seen == [C if step < first else C * (num_steps + 1) for step in range(12)]


def test_a_label_outside_the_classes_is_not_queued() -> None:
    loss = MemVir(make("norm-softmax"), 2, 0)
    with pytest.raises(ValueError, match=r"labels contains 4; expected class indices in \[0, 4\)"):
        loss(torch.randn(2, D), torch.tensor([0, 4]))
    assert loss.counters.tolist() == [0, 0]
