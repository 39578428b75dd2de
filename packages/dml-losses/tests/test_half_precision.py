"""Losses are as accurate as float32 allows, also for embeddings in half precision, as autocast
gives them, and on a GPU's tensor cores.
"""

from __future__ import annotations

import copy

import pytest
import torch
from losses_support.registered import REGISTERED, build
from losses_support.tensor_cores import emulate_tensor_cores

from dml_losses.functional import products

# Ranks are sigmoids of differences of cosines divided by 0.01, so float32 loses a digit of their
# gradient.
STEEP = ("recall-at-k-surrogate", "smooth-ap", "sup-ap")


@pytest.fixture(params=["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compute on a CPU, on a CPU that multiplies in parts, and on a GPU's tensor cores."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; the CPU multiplies the same parts")
    if request.param == "emulated":
        emulate_tensor_cores(monkeypatch)
    monkeypatch.setattr(products, "_FEWEST_MULTIPLICATIONS", 0)
    return "cuda" if request.param == "cuda" else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", REGISTERED)
def test_value_and_gradients_are_those_of_float64(
    name: str, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    loss = build(name, 8, 128).to(device)
    exact = copy.deepcopy(loss).double()
    x = torch.randn(48, 128).to(device, dtype).requires_grad_()
    y = torch.arange(48, device=device) % 8
    same = x.detach().double().requires_grad_()
    with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
        value = loss(x, y)
    expected = exact(same, y)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected.float(), rtol=1e-6, atol=0)
    for got, want in zip([x, *loss.parameters()], [same, *exact.parameters()], strict=True):
        limits = torch.finfo(got.dtype)
        # The embeddings' gradient is rounded to their dtype, whose smallest numbers are eps · tiny
        # apart.
        relative = 2e-5 if name in STEEP and dtype == torch.float32 else 3e-6
        bound = relative * want.grad.abs().max() + limits.eps * (want.grad.abs() + limits.tiny)
        assert ((got.grad.double() - want.grad).abs() <= bound).all()
