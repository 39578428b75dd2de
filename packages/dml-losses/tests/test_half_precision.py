"""Half-precision embeddings, as autocast gives them, lose no accuracy in a loss: sums and norms are
in float32.
"""

from __future__ import annotations

import copy

import pytest
import torch
from losses_support.registered import REGISTERED, build

from dml_losses.functional import products


@pytest.fixture(params=["widened", "tensor cores"])
def error(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Also compute as with a GPU's tensor cores, which sum in float32. Return the error of the
    embeddings' gradient, relative to the largest number, before it is rounded.
    """
    if request.param == "tensor cores":
        monkeypatch.setattr(products, "has_tensor_cores", lambda device: True)
        monkeypatch.setattr(products, "multiply_halves", lambda x, y: x.float() @ y.float())
    return 5e-6 if request.param == "tensor cores" else 3e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", REGISTERED)
def test_value_and_gradients_are_those_of_float64(
    name: str, dtype: torch.dtype, error: float
) -> None:
    torch.manual_seed(0)
    loss = build(name, 8, 128)
    exact = copy.deepcopy(loss).double()
    x, y = torch.randn(48, 128).to(dtype).requires_grad_(), torch.arange(48) % 8
    same = x.detach().double().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        value = loss(x, y)
    expected = exact(same, y)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected.float(), rtol=1e-6, atol=0)
    for got, want in zip([x, *loss.parameters()], [same, *exact.parameters()], strict=True):
        limits = torch.finfo(got.dtype)
        # The embeddings' gradient is rounded to their dtype, whose smallest numbers are eps · tiny
        # apart.
        relative = error if got is x else 3e-6
        bound = relative * want.grad.abs().max() + limits.eps * (want.grad.abs() + limits.tiny)
        assert ((got.grad.double() - want.grad).abs() <= bound).all()
