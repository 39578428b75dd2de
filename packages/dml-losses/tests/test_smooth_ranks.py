"""The losses of smooth ranks: Smooth-AP, SupAP and the recall@k surrogate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from losses_support import references as reference
from torch.autograd import grad
from torch.utils._python_dispatch import TorchDispatchMode

from dml_losses import RecallAtKSurrogate, functional
from dml_losses.functional import pairs

Loss = Callable[..., torch.Tensor]
SUP_AP = {"temperature": 0.1, "slope": 3.0, "saturation": 0.3}
RECALL = {"ks": [1, 2, 4], "k_temperatures": [1.0, 0.5, 4.0], "rank_temperature": 0.2}
CASES: dict[str, tuple[Loss, Loss, dict[str, Any]]] = {
    "smooth-ap": (functional.smooth_ap, reference.smooth_ap_value, {"temperature": 0.2}),
    "smooth-ap, sharp": (functional.smooth_ap, reference.smooth_ap_value, {"temperature": 0.01}),
    "sup-ap": (functional.sup_ap, reference.sup_ap_value, SUP_AP),
    "sup-ap, saturated at 0": (functional.sup_ap, reference.sup_ap_value, SUP_AP | {"saturation": 0.0}),
    "recall": (functional.recall_at_k_surrogate, reference.recall_at_k_value, RECALL),
    # Seven positives of rank 4 or less, sharply: their sum exceeds 4, and its minimum with 4 stops the gradient.
    "recall, limited": (
        functional.recall_at_k_surrogate,
        reference.recall_at_k_value,
        {"ks": [4, 6], "k_temperatures": [0.01, 0.2], "rank_temperature": 5.0},
    ),
}


def rows(count: int, seed: int, dim: int = 3) -> torch.Tensor:
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "labels",
    [[0, 0, 1, 1, 2, 2], [3, 0, 3, 3, 7, 0, 3, 5], [0, 0, 0], [0, 1, 2], [4], [1, 1, 1, 1, 1, 1, 1, 0]],
)
def test_value_and_gradient_are_those_of_the_equations(name: str, labels: list[int]) -> None:
    fast, slow, parameters = CASES[name]
    x, y = rows(len(labels), 0).requires_grad_(), torch.tensor(labels)
    value, expected = fast(x, y, **parameters), slow(x, y, **parameters)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    wanted = grad(expected, x, materialize_grads=True, allow_unused=True)[0]
    torch.testing.assert_close(grad(value, x)[0], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_gallery_is_ranked_and_moves(name: str) -> None:
    fast, slow, parameters = CASES[name]
    x, y = rows(5, 1).requires_grad_(), torch.tensor([2, 0, 1, 0, 9])
    g, z = rows(9, 2).requires_grad_(), torch.tensor([0, 1, 1, 3, 0, 1, 4, 0, 0])
    value, expected = fast(x, y, g, z, **parameters), slow(x, y, g, z, **parameters)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    found, wanted = grad(value, (x, g)), grad(expected, (x, g), materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_blocks_change_nothing_but_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _, parameters = CASES[name]
    x = rows(150, 4, dim=6).requires_grad_()
    y = torch.randint(0, 40, (150,), generator=torch.Generator().manual_seed(0))
    whole = fast(x, y, **parameters)
    gradient = grad(whole, x)[0]
    monkeypatch.setattr(pairs, "_CPU_BLOCK_ELEMENTS", 16 * 150)
    blocks = fast(x, y, **parameters)
    torch.testing.assert_close(blocks, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad(blocks, x)[0], gradient, rtol=1e-9, atol=1e-13)


def test_one_positive_behind_one_of_two_negatives_by_hand() -> None:
    """Cosines 1/2 of the positive, 1 and 0 of the negatives; τ = 1/(2·log 3) makes the sigmoids 3/4 and 1/4."""
    q, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    g = torch.tensor([[0.5, 0.75**0.5], [2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    given, z = (q, y, g), torch.tensor([0, 1, 2])
    tau = 1 / (2 * math.log(3))
    smooth = functional.smooth_ap(*given, z, temperature=tau)
    assert smooth.item() == pytest.approx(1 - 1 / 2)  # 1/(1 + 3/4 + 1/4)
    sup = functional.sup_ap(*given, z, temperature=tau, slope=2.0, saturation=0.25)
    above = 2.0 * 0.25 + 1 / (1 + 3**-0.5) + 0.5
    assert sup.item() == pytest.approx(1 - 1 / (1 + above + 1 / 4))
    recall = functional.recall_at_k_surrogate(
        *given, z, ks=[1, 2], k_temperatures=[1, 1], rank_temperature=tau
    )
    assert recall.item() == pytest.approx(1 - (1 / (1 + math.e) + 1 / 2) / 2)  # rank 2


def test_sup_ap_bounds_average_precision_and_counts_ranks_without_smoothing() -> None:
    x, y = rows(40, 7, dim=5), torch.arange(40) // 4
    exact = functional.smooth_ap(x, y, temperature=1e-9)  # steps: no two similarities are so near
    for temperature in (0.5, 0.01, 1e-9):
        assert functional.sup_ap(x, y, temperature=temperature) >= exact - 1e-12


def test_wrongly_ranked_pairs_keep_their_gradient_in_sup_ap_alone() -> None:
    """A positive at cosine −1/2 and a negative at 1/2: the sigmoid's slope is 0 there, ρ is not."""
    q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    g = torch.tensor([[-0.5, 0.75**0.5], [0.5, 0.5]], dtype=torch.float64)
    sizes = []
    for loss in (functional.smooth_ap, functional.sup_ap):
        leaf = q.clone().requires_grad_()
        sizes.append(float(grad(loss(leaf, torch.tensor([0]), g, torch.arange(2)), leaf)[0].abs().max()))
    assert sizes[0] < 1e-12 < 1e-4 < sizes[1]


@pytest.mark.parametrize("name", ["smooth-ap", "sup-ap", "recall"])
def test_no_tensor_is_larger_than_a_block(name: str) -> None:
    """1,024 queries of 32 classes: (queries × positives × gallery) would have 32 million elements."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            result = function(*arguments, **(options or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.numel())
            return result

    fast, _, parameters = CASES[name]
    x = rows(1024, 3, dim=4).float().requires_grad_()
    with Largest() as largest:
        fast(x, torch.arange(1024) % 32, **parameters).backward()
    assert largest.size <= 128 * 1024  # a block's rows × the gallery


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ks": []}, r"ks is \[\]; expected whole numbers of at least 1"),
        ({"ks": [0, 1]}, r"ks is \[0, 1\]; expected whole numbers of at least 1"),
        ({"ks": [1], "k_temperatures": [1.0, 2.0]}, "expected a finite number above 0 for each of ks"),
        ({"ks": [1], "k_temperatures": [0.0]}, "expected a finite number above 0 for each of ks"),
        ({"rank_temperature": 0.0}, "rank_temperature is 0.0; expected a finite number above 0"),
    ],
)
def test_a_parameter_outside_its_range_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecallAtKSurrogate(**parameters)
