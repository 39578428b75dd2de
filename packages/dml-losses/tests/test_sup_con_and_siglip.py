"""SupCon and SigLIP: terms of the similarity product, and SigLIP's queries spread over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from losses_support import references as reference
from torch.autograd import grad

from dml_losses import SigLIP, exchange, functional
from dml_losses.functional import pairs

LABELS = [[0, 0, 1, 1, 2, 2], [3, 0, 3, 3, 7, 0, 5], [0, 0, 0], [0, 1, 2], [4]]


def rows(count: int, seed: int, dim: int = 3) -> torch.Tensor:
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def assert_same(value: torch.Tensor, expected: torch.Tensor, *moved: torch.Tensor) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grad(value, moved), grad(expected, moved), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("labels", LABELS)
def test_sup_con_is_its_equation(labels: list[int], temperature: float) -> None:
    x, y = rows(len(labels), 0).requires_grad_(), torch.tensor(labels)
    value, expected = (
        loss(x, y, temperature=temperature) for loss in (functional.sup_con, reference.sup_con_value)
    )
    assert_same(value, expected, x)


@pytest.mark.parametrize("labels", LABELS)
def test_siglip_is_its_equation(labels: list[int]) -> None:
    x, y = rows(len(labels), 0).requires_grad_(), torch.tensor(labels)
    learned = {"log_scale": number(1.3), "bias": number(-0.7)}
    value, expected = functional.siglip(x, y, **learned), reference.siglip_value(x, y, **learned)
    assert_same(value, expected, x, *learned.values())


def test_both_compare_with_a_gallery_which_moves() -> None:
    x, y = rows(5, 1).requires_grad_(), torch.tensor([2, 0, 1, 0, 9])
    g, z = rows(7, 2).requires_grad_(), torch.tensor([0, 1, 1, 3, 0, 1, 4])
    learned = {"log_scale": number(1.3), "bias": number(-0.7)}
    value, expected = functional.siglip(x, y, g, z, **learned), reference.siglip_value(x, y, g, z, **learned)
    assert_same(value, expected, x, g, *learned.values())
    value, expected = (
        loss(x, y, g, z, temperature=0.2) for loss in (functional.sup_con, reference.sup_con_value)
    )
    assert_same(value, expected, x, g)


def test_both_by_hand() -> None:
    """A positive at 60° and a negative at 90°: exponentials 3 and 1, and logits 0 and −log 3."""
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    g, z = torch.tensor([[0.5, 0.75**0.5], [0.0, 1.0]], dtype=torch.float64), torch.tensor([0, 1])
    tau = 1 / (2 * math.log(3))
    for loss in (functional.sup_con, reference.sup_con_value):
        assert loss(x, y, g, z, temperature=tau).item() == pytest.approx(math.log(4 / 3))
    learned = {"log_scale": number(-math.log(tau)), "bias": number(-math.log(3))}
    for loss in (functional.siglip, reference.siglip_value):
        assert loss(x, y, g, z, **learned).item() == pytest.approx(math.log(2) + math.log(4 / 3))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: functional.sup_con(x, y),
        lambda x, y: functional.siglip(x, y, log_scale=number(2.0), bias=number(-3.0)),
    ],
    ids=["sup-con", "siglip"],
)
def test_blocks_change_nothing_but_rounding(
    loss: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rows(150, 4).requires_grad_(), torch.arange(150) % 40
    value = loss(x, y)
    gradient = grad(value, x)[0]
    monkeypatch.setattr(pairs, "_CPU_BLOCK_ELEMENTS", 16 * 150)
    blocks = loss(x, y)
    torch.testing.assert_close(blocks, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad(blocks, x)[0], gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    "flags", [(True, True, True), (True, False, False), (False, True, True), (False, False, True)]
)
def test_the_fake_of_siglips_operator_has_the_shapes_of_its_results(flags: tuple[bool, ...]) -> None:
    x, y, g, z = rows(4, 5), torch.arange(4) % 2, rows(6, 6), torch.arange(6) % 3
    given = (x, y, *((x, y) if flags[0] else (g, z)), rows(1, 7)[0, 0], rows(1, 7)[0, 1], *flags, False)
    torch.library.opcheck(
        torch.ops.dml_losses.siglip.default, given, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize(("size", "world_sizes"), [(1, [2]), (40, [2, 3]), (300, [2, 4, 7])])
def test_shares_of_any_number_of_ranks_make_the_bits_of_one(
    size: int, world_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank is played in turn, and what it sends to the others is kept; real ranks are in `test_global_batch`."""
    x, y = rows(size, 8, dim=16).float().requires_grad_(), torch.arange(size) % 31
    loss = SigLIP(over_ranks=True)
    value = loss(x, y)
    alone = [value.detach(), *grad(value, (x, loss.log_scale, loss.bias))]
    torch.testing.assert_close(alone[0], SigLIP()(x, y).detach(), rtol=1e-5, atol=0)
    for world_size in world_sizes:
        sent: list[list[torch.Tensor]] = []
        for rank in range(world_size):
            monkeypatch.setattr(
                exchange, "rank_and_world_size", lambda rank=rank, world_size=world_size: (rank, world_size)
            )
            gathered: list[torch.Tensor] = []

            def record(
                own: torch.Tensor, counts: list[int], gathered: Any = gathered, rank: int = rank
            ) -> Any:
                assert counts[rank] == len(own)
                gathered.append(own.clone())
                return own.new_zeros(sum(counts), *own.shape[1:])

            monkeypatch.setattr(exchange, "all_gather_rows", record)
            loss(x, y)
            sent.append(gathered)
        joined = [torch.cat(parts) for parts in zip(*sent, strict=True)]

        def deliver(own: torch.Tensor, counts: list[int], joined: Any = joined) -> torch.Tensor:
            return next(part for part in joined if part.shape == (sum(counts), *own.shape[1:]))

        monkeypatch.setattr(exchange, "all_gather_rows", deliver)
        value = loss(x, y)
        together = [value.detach(), *grad(value, (x, loss.log_scale, loss.bias))]
        assert all(map(torch.equal, together, alone))


def test_the_scale_and_the_bias_are_learned() -> None:
    loss = SigLIP()
    assert loss.log_scale.item() == pytest.approx(math.log(10))
    assert loss.bias.item() == -10
    loss(rows(6, 9), torch.arange(6) // 2).backward()
    assert loss.log_scale.grad is not None
    assert loss.bias.grad.abs() > 0
    with pytest.raises(ValueError, match=r"scale is 0; expected a finite number above 0"):
        SigLIP(scale=0)
