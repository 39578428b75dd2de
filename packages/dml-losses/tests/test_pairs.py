"""The common part of pair losses: galleries of any dtype and order, and their operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from losses_support import references as reference
from losses_support.references import smooth_ap_value
from torch.autograd import grad

from dml_losses import functional as F

PAPER = {
    "margin": 0.4,
    "alpha": 1.2,
    "negative_temperature": 10.0,
    "positive_temperature": 0.0,
    "balance": 0.5,
}
Loss = Callable[..., torch.Tensor]
LOSSES: dict[str, tuple[Loss, Loss]] = {
    "instance-cross-entropy": (
        lambda *given: F.instance_cross_entropy(*given, scale=8.0, reweight=False),
        lambda x, y, *gallery: reference.instance_cross_entropy_value(x, y, 8.0, *gallery),
    ),
    "ranked-list": (F.ranked_list, lambda *given: reference.ranked_list_value(*given, **PAPER)),
    "smooth-ap": (
        lambda *given: F.smooth_ap(*given, temperature=0.2),
        lambda *given: smooth_ap_value(*given, temperature=0.2),
    ),
}


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("gallery_labels", [[5, 7, 5, 6], [1, 1, 1, 1], [9, 1, 2, 9]])
def test_queries_whose_labels_are_not_in_the_gallery(name: str, gallery_labels: list[int]) -> None:
    fast, slow = LOSSES[name]
    x, g = rows(4, 0).requires_grad_(), rows(4, 1)
    y, z = torch.tensor([2, 0, 3, 2]), torch.tensor(gallery_labels)
    value, expected = fast(x, y, g, z), slow(x, y, g, z)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grad(value, x)[0], grad(expected, x)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_a_gallery_may_have_another_dtype_of_rows_and_labels(name: str) -> None:
    fast, _ = LOSSES[name]
    x, y, g, z = rows(5, 2), torch.arange(5) % 2, rows(6, 3).float(), torch.arange(6) % 3
    expected = fast(x, y, g.double(), z)
    assert torch.equal(fast(x, y.int(), g, z.to(torch.uint8)), expected)
    assert torch.equal(fast(x, y.to(torch.uint8), g, z.int()), expected)
    assert fast(g, z, x, y).dtype == torch.float64


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_scales_with_the_upstream_gradient(name: str) -> None:
    fast, _ = LOSSES[name]
    x, y = rows(6, 4).requires_grad_(), torch.arange(6) // 2
    once, tripled = grad(fast(x, y), x)[0], grad(3 * fast(x, y), x)[0]
    torch.testing.assert_close(tripled, 3 * once, rtol=1e-14, atol=0)


@pytest.mark.parametrize("flags", [(True, True, True), (True, False, False), (True, False, True), (True, True, False),
                                   (False, True, True), (False, True, False), (False, False, True)])  # fmt: skip
@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        (torch.ops.dml_losses.instance_cross_entropy, (8.0, True)),
        (torch.ops.dml_losses.ranked_list, (0.8, 1.2, 0.0, 10.0, 0.5, False)),
        (torch.ops.dml_losses.recall_at_k_surrogate, ([1.0, 2.0], [1.0, 1.0], 0.1)),
        (torch.ops.dml_losses.sup_con, (0.1,)),
    ],
    ids=["instance-cross-entropy", "ranked-list", "recall-at-k-surrogate", "sup-con"],
)
def test_the_fake_of_an_operator_has_the_shapes_of_its_results(operator, parameters, flags) -> None:
    x, y, g, z = rows(4, 5), torch.arange(4) % 2, rows(6, 6), torch.arange(6) % 3
    given = (x, y, *((x, y) if flags[0] else (g, z)), *flags, *parameters)
    torch.library.opcheck(operator.default, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("features_move", "weights_move"), [(True, True), (True, False), (False, True), (False, False)]
)
@pytest.mark.parametrize("constants", [0, 2])
def test_the_fake_of_the_class_losses_operator_does_too(
    features_move: bool, weights_move: bool, constants: int
) -> None:
    centers = 2 if constants else 1
    labels = torch.tensor([0, 3, 1, 2, 4, 5][: 4 + constants]) // centers
    past = [rows(1, 9), rows(1, 10)][:constants]
    given = (
        rows(4, 7),
        rows(constants, 11),
        labels,
        rows(4, 8),
        past,
        rows(4 + constants, 12)[:, :2] if constants else rows(0, 12)[:, :2],
        None,
        8.0,
        0.5,
        0.0,
        True,
        centers,
        True,
        0,
        0,
        features_move,
        weights_move,
    )
    torch.library.opcheck(
        torch.ops.dml_losses.cosine_softmax.default, given, test_utils=("test_schema", "test_faketensor")
    )
