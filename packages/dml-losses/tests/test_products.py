"""Products of rows in half precision, compared with float64, as tensor cores compute them."""

from __future__ import annotations

import pytest
import torch

from dml_losses.functional import products
from dml_losses.functional.products import (
    Factor,
    add_weighted_sums_,
    multiply,
    parts_for_gradient,
    unit_factor,
)
from dml_losses.functional.sphere import inverse_norms, unit_rows

HALF = (torch.float16, torch.bfloat16)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Pretend that the CPU has tensor cores; return the dtypes that they multiply."""
    dtypes: list[torch.dtype] = []

    def multiply_halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.dtype == y.dtype
        dtypes.append(x.dtype)
        return x.float() @ y.float()

    monkeypatch.setattr(products, "has_tensor_cores", lambda device: True)
    monkeypatch.setattr(products, "multiply_halves", multiply_halves)
    return dtypes


def factor(x: torch.Tensor) -> Factor:
    return unit_factor(x, inverse_norms(x.float()))


def rows(count: int, dtype: torch.dtype, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(count, 128, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16, torch.float32])
def test_cosines_times_64_are_those_of_float64(
    dtype: torch.dtype, other: torch.dtype, seen: list[torch.dtype]
) -> None:
    x, y = rows(200, dtype, 0), rows(300, other, 1)
    y[:200] += x  # also cosines near 1
    got = multiply(factor(x), factor(y))
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        64 * got.double(), 64 * unit_rows(x.double()) @ unit_rows(y.double()).T, rtol=0, atol=5e-5
    )
    assert seen == [dtype if dtype == other else torch.bfloat16]  # a single product


@pytest.mark.parametrize("dtype", HALF)
def test_rows_keep_their_digits(dtype: torch.dtype) -> None:
    x = rows(50, dtype, 2)
    numbers, scale = factor(x)
    assert scale is not None
    ratio = x.double() / numbers.double()
    assert torch.equal(ratio, ratio[:, :1].expand_as(ratio))  # a power of two for each row
    assert torch.equal(torch.frexp(ratio).mantissa, torch.full_like(ratio, 0.5))
    torch.testing.assert_close(
        factor(x).product().double(), unit_rows(x.double()), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize(
    "scale", [1e-18, 1e-5, 1e5, 1e17], ids=["smallest", "small", "large", "largest"]
)
def test_the_length_of_rows_does_not_matter(scale: float, seen: list[torch.dtype]) -> None:
    x, y = rows(20, torch.bfloat16, 3, scale), rows(30, torch.bfloat16, 4, scale)
    expected = unit_rows(x.double()) @ unit_rows(y.double()).T
    torch.testing.assert_close(multiply(factor(x), factor(y)).double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 0.0), (torch.bfloat16, 0.0), (torch.bfloat16, 1e30)]
)
def test_a_row_without_direction_has_cosines_of_zero(
    dtype: torch.dtype, size: float, seen: list[torch.dtype]
) -> None:
    x = rows(3, dtype, 5)
    x[1] = size
    assert torch.equal(multiply(factor(x), factor(x))[1], torch.zeros(3))


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, 1)])
def test_weighted_sums_are_those_of_float64(
    parts: int, dtype: torch.dtype, alpha: int, beta: int, seen: list[torch.dtype]
) -> None:
    weights, y = rows(128, torch.float32, 6), rows(128, dtype, 7)
    sums = torch.full((128, 128), torch.nan if beta == 0 else 3.0)
    expected = 3.0 * beta + alpha * (weights.double() @ unit_rows(y.double()))
    add_weighted_sums_(sums, weights, factor(y), parts=parts, alpha=alpha, beta=beta)
    bound = {2: 1e-5, 3: 1e-6}[parts] * expected.abs().max()
    assert (sums.double() - expected).abs().max() <= bound
    pairs = {2: {torch.bfloat16: 2}, 3: {torch.bfloat16: 3, torch.float16: 5}}[parts]
    assert len(seen) == pairs.get(dtype, {2: 3, 3: 6}[parts])


def test_half_precision_alone_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = rows(2, torch.bfloat16, 8), rows(2, torch.float32, 9)
    assert parts_for_gradient(narrow, wide) == 0  # a CPU
    monkeypatch.setattr(products, "has_tensor_cores", lambda device: True)
    assert parts_for_gradient(wide, wide) == 0
    assert parts_for_gradient(narrow, wide) == 2
    assert parts_for_gradient(wide, narrow) == 3


def test_a_cpu_has_no_tensor_cores() -> None:
    assert not products.has_tensor_cores(torch.device("cpu"))
