"""The kernel that splits numbers in one pass: by Triton's interpreter on a CPU, and on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from dml_losses.functional import products

Kernel = Callable[[torch.Tensor, tuple[int, ...], torch.dtype], torch.Tensor]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; Triton interprets the kernel on a CPU")
    return str(request.param)


@pytest.fixture
def split(device: str, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton isn't installed")
    from dml_losses.functional import split_kernel

    if device == "cpu":
        interpreted = interpreter.InterpretedFunction(split_kernel._split.fn)
        monkeypatch.setattr(split_kernel, "_split", interpreted)
    return split_kernel.split_in_one_pass


@pytest.mark.parametrize("shape", [(3, 5), (2, 2049), (70, 64), (1, 4096), (0, 8), (8, 0)], ids=str)
@pytest.mark.parametrize(
    ("order", "dtype"),
    [
        ((0, 1, 0), torch.float16),
        ((1, 0, 0), torch.float16),
        ((0, 1), torch.bfloat16),
        ((0, 1, 2), torch.bfloat16),
    ],
    ids=str,
)
def test_parts_add_up(
    shape: tuple[int, int], order: tuple[int, ...], dtype: torch.dtype, device: str, split: Kernel
) -> None:
    count, dim = shape
    x = torch.randn(count, dim + 3, device=device)[:, :dim]
    got = split(x, order, dtype)
    assert got.shape == (count, len(order), dim)
    assert got.dtype == dtype
    parts = {part: got[:, place].float() for place, part in enumerate(order)}
    for place, part in enumerate(order):
        assert torch.equal(got[:, place].float(), parts[part])
    rest = x
    for part in sorted(parts):
        # The interpreter cuts bfloat16 off, and doesn't round.
        digits = 8 if dtype == torch.bfloat16 else 11
        assert ((rest - parts[part]).abs() <= rest.abs() * 2.0 ** (1 - digits) + 2**-24).all()
        rest = rest - parts[part]
    if len(parts) == 3:
        assert not rest.any()


def test_a_transposed_matrix_is_split(device: str, split: Kernel) -> None:
    x = torch.randn(7, 5, device=device)
    order = (0, 1)
    assert torch.equal(
        split(x.T, order, torch.float16),
        split(x.T.clone(memory_format=torch.contiguous_format), order, torch.float16),
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_uses_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(65, 130, device="cuda")
    for order, dtype in (((0, 1, 0), torch.float16), ((0, 1, 2), torch.bfloat16)):
        with monkeypatch.context() as patched:
            patched.setattr(products, "_split_kernel", lambda: None)
            expected = products._split(x, order, dtype)
        assert torch.equal(products._split(x, order, dtype), expected)
    assert products._split_kernel() is not None


def test_without_triton_or_a_compiler_the_numbers_are_split_by_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "dml_losses.functional.split_kernel", None)
    assert products._split_kernel.__wrapped__() is None

    def fail(*_: object) -> None:
        raise RuntimeError("no compiler")

    kernel = SimpleNamespace(split_in_one_pass=fail)
    monkeypatch.setitem(sys.modules, "dml_losses.functional.split_kernel", kernel)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    with pytest.warns(UserWarning, match=r"can't compile a kernel \(no compiler\)"):
        assert products._split_kernel.__wrapped__() is None
