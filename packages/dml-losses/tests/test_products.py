"""Products in parts, as tensor cores compute them, compared with float64."""

from __future__ import annotations

import pytest
import torch
from losses_support.tensor_cores import emulate_tensor_cores

from dml_losses.functional import products
from dml_losses.functional.products import (
    ALL_PARTS,
    LARGEST_FACTOR,
    add_product_,
    left_factor,
    multiply,
    pays_in_parts,
    right_factor,
    split,
)
from dml_losses.functional.sphere import unit_rows


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device; the CPU multiplies the same parts")
        return "cuda"
    emulate_tensor_cores(monkeypatch)
    return "cpu"


def rows(count: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, 128, generator=generator)


@pytest.mark.parametrize("scale", [2**-10, 1.0, 64.0, LARGEST_FACTOR])
def test_logits_are_those_of_float64(scale: float, device: str) -> None:
    x, y = rows(200, 0), rows(300, 1)
    y[:200] += x  # also cosines near 1
    x[0] = 0
    left, right = unit_rows(x).to(device), unit_rows(y).to(device)
    got = multiply(left_factor(left * scale, True), right_factor(right, True))
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), scale * left.double() @ right.double().T, rtol=0, atol=8e-7 * scale + 1e-7
    )


def test_a_small_number_has_an_absolute_error(device: str) -> None:
    small = torch.full((1, 4096), 1 / 64, device=device)
    small[:, ::2] = 1e-7
    product = multiply(left_factor(small, True), right_factor(small, True))
    torch.testing.assert_close(
        product.double(), small.double() @ small.double().T, rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize(
    ("parts", "error"), [((2, 2), 1e-5), ((3, 2), 1e-5), ((3, 3), 5e-7)], ids=str
)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, 1)])
def test_sums_are_those_of_float64(
    parts: tuple[int, int], error: float, scale: float, alpha: int, beta: int, device: str
) -> None:
    """bfloat16 has the range of float32, so derivatives can have any size."""
    weights, y = rows(96, 6, scale).to(device), unit_rows(rows(128, 7)).to(device)
    sums = torch.full((96, 128), torch.nan if beta == 0 else 3 * scale, device=device)
    expected = 3 * scale * beta + alpha * (weights.double() @ y.double())
    add_product_(sums, split(weights, parts[0]), split(y, parts[1]), alpha=alpha, beta=beta)
    assert (sums.double() - expected).abs().max() <= error * expected.abs().max()


def test_parts_add_up(device: str) -> None:
    x = rows(50, 2).to(device)
    parts = split(x, ALL_PARTS)
    assert [part.dtype for part in parts] == [torch.bfloat16] * 3
    assert torch.equal(sum(part.double() for part in parts).float(), x)  # type: ignore[union-attr]


def test_products_of_small_parts_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = emulate_tensor_cores(monkeypatch)
    x = unit_rows(rows(4, 3))
    multiply(left_factor(x, True), right_factor(x, True))
    assert seen == [torch.float16]  # three products of parts at once
    for parts, expected in (((2, 2), 4), ((3, 2), 5), ((3, 3), 6)):
        seen.clear()
        add_product_(torch.zeros(4, 128), split(rows(4, 4)[:, :4], parts[0]), split(x, parts[1]))
        assert seen == [torch.bfloat16] * expected


def test_other_devices_and_small_products_are_multiplied_as_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.zeros(1024, 512)
    assert not pays_in_parts(x, 10**6)
    monkeypatch.setattr(products, "has_tensor_cores", lambda device: True)
    assert pays_in_parts(x, 2**15)
    assert not pays_in_parts(x, 2**15 - 1)
    assert not pays_in_parts(x.double(), 10**6)
    assert left_factor(x, False) is right_factor(x, False) is split(x, 0)[0] is x


def test_a_cpu_has_no_tensor_cores() -> None:
    assert not products.has_tensor_cores(torch.device("cpu"))
