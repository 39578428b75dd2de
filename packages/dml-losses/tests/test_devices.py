"""Losses make all tensors on the embeddings' device; fake tensors are used to check this when there
is no accelerator.

Fake tensors are given a shape, a dtype and a device, but not data, and operations that mix devices
fail as on real devices. Tests marked `gpu` check the values.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from losses_support.registered import EVERY
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensorMode

from dml_losses.functional import products, smooth_ranks

CLASSES, DIM = 5, 6
# `torch.unique` isn't defined for fake tensors, and copying a module would read the tensors'
# memory.
NOT_FAKED = ("sampled-classes", "matryoshka of pairs")
# Losses that read from the device how many positives a row has, except in a CUDA graph.
READING = (
    "recall-at-k-surrogate", "smooth-ap", "sup-ap", "triplet, all", "triplet, semi-hard",
)  # fmt: skip
# Sampling reads the number of classes, and a queue on the CPU is copied.
NOT_CAPTURED = ("sampled-classes", "memvir, queue on the CPU")


def fakes_need_a_driver() -> bool:
    """Return whether fake tensors on a GPU need the driver, as for indexing in torch 2.8."""
    with FakeTensorMode(), torch.device("cuda"):
        rows = torch.randn(2, 3, requires_grad=True)
        try:
            rows[torch.zeros(1, dtype=torch.int64)]
        except RuntimeError:
            return True
    return False


needs_fakes = pytest.mark.skipif(
    fakes_need_a_driver(),
    reason=f"torch {torch.__version__} indexes no fake tensor without a GPU's driver",
)


def fakes_lack_half_precision() -> bool:
    """Return whether fake tensors lack products in half precision with sums in float32, as in torch
    2.11.
    """
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.empty(2, 2, dtype=torch.bfloat16)
        try:
            products.add_halves_(torch.empty(2, 2), x, x, 1, 0)
        except (RuntimeError, TypeError):
            return True
    return False


fakes_parts = pytest.mark.skipif(
    fakes_lack_half_precision(), reason=f"torch {torch.__version__} has no fake for these products"
)


@pytest.fixture
def _see_inside_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the bodies of the losses' operators, which fake tensors would skip."""

    def body(operator: CustomOpDef, *inputs: Any) -> Any:
        with torch.no_grad():
            return operator._init_fn(*inputs)

    monkeypatch.setattr(CustomOpDef, "__call__", body)


@needs_fakes
@pytest.mark.usefixtures("_see_inside_operators")
@pytest.mark.parametrize("in_parts", [False, pytest.param(True, marks=fakes_parts)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name in EVERY if name not in NOT_FAKED])
def test_a_loss_computes_on_the_device_of_the_embeddings(
    name: str, dtype: torch.dtype, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fake tensors have no numbers to read, so a loss doesn't wait for the device; those in
    `READING` don't in a CUDA graph.
    """
    if in_parts:
        monkeypatch.setattr(products, "_FEWEST_MULTIPLICATIONS", 0)
    if name in READING:
        monkeypatch.setattr(smooth_ranks, "_is_captured", lambda like: True)
    with FakeTensorMode(), torch.device("cuda"):
        loss = EVERY[name](CLASSES, DIM)
        x, y = torch.randn(12, DIM, dtype=dtype), torch.zeros(12, dtype=torch.int64)
        x.requires_grad_()
        for _ in range(4):  # memories are used from the second call on
            value = loss(x, y)
            assert (value.device, value.dtype) == (x.device, torch.float32)


def test_a_tensor_on_another_device_is_found() -> None:
    class Forgetful(nn.Module):
        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (embeddings * torch.ones(DIM, device="cpu")).sum()

    with FakeTensorMode(), pytest.raises(RuntimeError, match="cpu"):
        Forgetful()(
            torch.randn(12, DIM, device="cuda"), torch.zeros(12, dtype=torch.int64, device="cuda")
        )


@pytest.mark.parametrize(
    ("is_captured", "elements"),
    [(False, 2 * 12 * 12), (False, 2**20), (True, 0), (True, 2 * 12 * 12), (True, 2**20)],
)
@pytest.mark.parametrize("name", READING)
def test_positives_are_compared_as_on_a_gpu(
    name: str, is_captured: bool, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU compares several positives per query at a time, and all columns in a CUDA graph."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, DIM, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 4])

    def step() -> tuple[torch.Tensor, ...]:
        value = EVERY[name](CLASSES, DIM)(x, y)
        return value, *torch.autograd.grad(value, x)

    expected = step()
    monkeypatch.setattr(smooth_ranks, "_ELEMENTS_AT_ONCE", {"cpu": elements})
    monkeypatch.setattr(smooth_ranks, "_is_captured", lambda like: is_captured)
    for got, want in zip(step(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason=(
        "needs a CUDA device; on the CPU, fake tensors check that a loss doesn't wait for the "
        "device"
    ),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in EVERY if name not in NOT_CAPTURED])
def test_a_cuda_graph_replays_value_and_gradients(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype != torch.float32:
        monkeypatch.setattr(products, "_FEWEST_MULTIPLICATIONS", 0)
    generator = torch.Generator("cuda").manual_seed(0)
    x, y = (
        torch.randn(12, DIM, device="cuda", dtype=dtype, generator=generator),
        torch.arange(12, device="cuda") % CLASSES,
    )
    loss = EVERY[name](CLASSES, DIM).cuda()

    def step(loss: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
        leaf = rows.detach().requires_grad_()
        value = loss(leaf, y)
        return [value, *torch.autograd.grad(value, (leaf, *loss.parameters()), allow_unused=True)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # PyTorch requires a warm-up before a capture
        for _ in range(3):
            step(loss, x)
    torch.cuda.current_stream().wait_stream(stream)
    copied = copy.deepcopy(loss)  # keeps the memories from before the captured step
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(loss, x)
    x.normal_(generator=generator)
    graph.replay()
    for got, want in zip(captured, step(copied, x), strict=True):
        # A gradient in half precision can be rounded differently.
        rtol = 1e-4 if got.dtype == torch.float32 else torch.finfo(got.dtype).eps
        torch.testing.assert_close(got, want, rtol=rtol, atol=1e-5)
