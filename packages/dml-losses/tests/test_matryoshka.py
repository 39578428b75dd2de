"""Matryoshka: any loss on nested prefixes, with shared class weights and separate state."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from losses_support import references as reference
from losses_support import rows as draw_rows
from losses_support.references import sup_con_value
from torch.autograd import grad

import dml_losses as dml
from dml_losses import Matryoshka

PREFIXES = [2, 3, 6]
rows = partial(draw_rows, dim=6)


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
def test_a_class_loss_is_the_sum_over_prefixes_of_embeddings_and_weights(
    weights: list[float] | None,
) -> None:
    loss = Matryoshka(dml.NormSoftmax(4, 6, temperature=0.2), PREFIXES, weights).double()
    x, y = rows(9, 0).requires_grad_(), torch.arange(9) % 4
    value = loss(x, y)
    w = loss.class_weights
    expected = sum(
        c * reference.norm_softmax_value(x[:, :m], y, w[:, :m], 0.2)
        for c, m in zip(weights or [1.0] * 3, PREFIXES, strict=True)
    )
    torch.testing.assert_close(value, expected, rtol=1e-11, atol=0)
    torch.testing.assert_close(grad(value, (x, w)), grad(expected, (x, w)), rtol=1e-8, atol=1e-11)


def test_a_pair_loss_is_the_sum_over_prefixes_of_both_sides() -> None:
    loss = Matryoshka(dml.SupCon(temperature=0.3), PREFIXES)
    x, y = rows(9, 1).requires_grad_(), torch.arange(9) % 4
    g, z = rows(7, 2).requires_grad_(), torch.arange(7) % 3
    assert not hasattr(loss, "class_weights")
    for given in ((x, y), (x, y, g, z)):
        value = loss(*given)
        expected = sum(
            sup_con_value(
                *(part if part.dim() == 1 else part[:, :m] for part in given), temperature=0.3
            )
            for m in PREFIXES
        )
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=0)
        moved = [part for part in given if part.requires_grad]
        torch.testing.assert_close(grad(value, moved), grad(expected, moved), rtol=1e-8, atol=1e-11)


def test_one_matrix_of_class_weights_serves_all_prefixes() -> None:
    loss = Matryoshka(dml.ArcFace(5, 6), PREFIXES)
    assert {name: tuple(p.shape) for name, p in loss.named_parameters()} == {
        "class_weights": (5, 6)
    }
    assert list(loss.state_dict()) == ["class_weights"]
    assert "ArcFace(5, 3, " in repr(loss)


def test_each_prefix_has_its_own_state_and_scheduled_numbers_are_shared() -> None:
    loss = Matryoshka(dml.AdaFace(4, 6, momentum=0.5), PREFIXES)
    x, y = rows(9, 3).float(), torch.arange(9) % 4
    loss(x, y)
    means = [float(each.norm_mean) for each in (*loss.shorter, loss.loss)]
    wanted = [10 + 0.5 * float(x[:, :m].norm(dim=1).mean()) for m in PREFIXES]
    assert means == pytest.approx(wanted)
    loss.loss.scale = 2.0
    loss(x, y)
    assert [each.scale for each in loss.shorter] == [2.0, 2.0]


def test_learned_scalars_are_separate() -> None:
    loss = Matryoshka(dml.SigLIP(), PREFIXES)
    assert len(list(loss.parameters())) == 6
    loss(rows(8, 4).float(), torch.arange(8) // 2).backward()
    assert len({float(p.grad) for name, p in loss.named_parameters() if name.endswith("bias")}) == 3


def test_memories_and_other_class_weights_go_around_it() -> None:
    x, y = rows(8, 5).float(), torch.arange(8) % 4
    for wrapped in (
        dml.MemVir(Matryoshka(dml.SubCenterArcFace(4, 6, 2), PREFIXES), 1, 0),
        dml.BroadFace(Matryoshka(dml.CosFace(4, 6), PREFIXES), 8),
        dml.CrossBatchMemory(Matryoshka(dml.SupCon(), PREFIXES), 8),
    ):
        for _ in range(3):
            assert torch.isfinite(wrapped(x, y))
    inner = Matryoshka(dml.NormSoftmax(4, 6), PREFIXES)
    given = torch.randn(4, 6)
    assert inner(x, y, given) != inner(x, y)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Matryoshka(dml.SupCon(), []), ValueError,
         r"prefixes is \[\]; expected ascending lengths"),
        (lambda: Matryoshka(dml.SupCon(), [4, 4]), ValueError,
         r"prefixes is \[4, 4\]; expected ascending"),
        (lambda: Matryoshka(dml.SupCon(), [0, 4]), ValueError,
         "prefixes is 0; expected at least 1"),
        (lambda: Matryoshka(dml.SupCon(), [4], embedding_dim=8), ValueError,
         "the embedding's dimension, 8"),
        (lambda: Matryoshka(dml.ArcFace(3, 8), [2, 4]), ValueError, "the embedding's dimension, 8"),
        (lambda: Matryoshka(dml.SupCon(), [2, 4], [1.0]), ValueError,
         r"expected one for each of the prefixes"),
        (lambda: Matryoshka(dml.SupCon(), [4], [-1.0]), ValueError,
         "weights is -1.0; expected a finite number"),
        (lambda: Matryoshka(dml.SupCon(), [2, 4])(torch.ones(2, 5), torch.arange(2)), ValueError,
         r"embeddings has shape \(2, 5\); expected \(batch, 4\)"),
        (lambda: Matryoshka(dml.SampledClasses(dml.ArcFace(9, 8), 0.5), [4, 8]), ValueError,
         "class_fraction = 0.5"),
        (lambda: Matryoshka(dml.MemVir(dml.ArcFace(3, 8), 1, 0), [4, 8]), TypeError,
         "MemVir, which wraps another"),
        (lambda: Matryoshka(dml.ShardedClasses(dml.ArcFace(3, 8)), [4, 8]), TypeError,
         "put ShardedClasses around"),
        (lambda: dml.ShardedClasses(Matryoshka(dml.ProxyAnchor(3, 8), [4, 8])), TypeError,
         "can't be sharded"),
    ],
)  # fmt: skip
def test_wrong_arguments_raise(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()
