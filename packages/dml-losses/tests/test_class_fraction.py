"""NormSoftmax over a random part of the classes."""

from __future__ import annotations

import math

import pytest
import torch

from dml_losses import MemVir, NormSoftmax, ShardedClasses
from dml_losses.functional import norm_softmax
from dml_losses.functional.class_subset import class_subset
from dml_losses.functional.cosine_softmax import Virtual


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("num_classes", [1, 7, 1001])
def test_the_subset_holds_the_batchs_classes_once_and_has_the_expected_size(
    fraction: float, num_classes: int
) -> None:
    labels = torch.randint(num_classes, (12,), generator=generator(0))
    subset, among = class_subset(labels, num_classes, fraction, generator(1))
    assert torch.equal(subset, subset.unique())
    assert torch.equal(subset[among], labels)
    assert 0 <= int(subset.min()) <= int(subset.max()) < num_classes
    assert len(subset) == max(math.ceil(fraction * num_classes), len(labels.unique()))


@pytest.mark.parametrize("fraction", [0.15, 0.5])  # drawn by rejection, and by a permutation
def test_the_other_classes_are_chosen_without_bias(fraction: float) -> None:
    """Of 40 classes, 3 are in the batch: each other class is drawn with the same probability, k/37."""
    labels, rounds = torch.tensor([0, 17, 39, 17]), 4000
    counts = torch.zeros(40)
    for seed in range(rounds):
        subset, _ = class_subset(labels, 40, fraction, generator(seed))
        counts[subset] += 1
    others = torch.ones(40, dtype=torch.bool)
    others[labels] = False
    assert (counts[~others] == rounds).all()
    chance = (40 * fraction - 3) / 37
    deviation = (counts[others] / rounds - chance).abs().max()
    assert deviation < 5 * (chance * (1 - chance) / rounds) ** 0.5


@pytest.mark.parametrize("fraction", [0.15, 0.5])  # drawn by rejection, and by a permutation
def test_torchs_default_device_changes_nothing(fraction: float) -> None:
    labels = torch.tensor([0, 17, 39, 17])
    expected = class_subset(labels, 40, fraction, generator(0))
    with torch.device("meta"):
        got = class_subset(labels, 40, fraction, generator(0))
    assert all(map(torch.equal, got, expected))


def test_the_loss_and_gradient_are_those_of_the_chosen_classes() -> None:
    loss = NormSoftmax(50, 6, class_fraction=0.2, seed=3).double()
    x, y = torch.randn(5, 6, dtype=torch.float64, requires_grad=True), torch.tensor([4, 40, 4, 9, 0])
    value = loss(x, y)
    gradient = torch.autograd.grad(value, loss.class_weights)[0].coalesce()
    subset = gradient.indices()[0]
    assert len(subset) == 10
    weights = loss.class_weights.detach()[subset].requires_grad_()
    expected = norm_softmax(x, torch.searchsorted(subset, y), weights)
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(gradient.values(), torch.autograd.grad(expected, weights)[0])


def test_given_class_weights_replace_its_own() -> None:
    given, own = (NormSoftmax(50, 6, class_fraction=0.2) for _ in range(2))
    x, y, w = torch.randn(5, 6), torch.arange(5), torch.randn(50, 6)
    own.class_weights.data = w
    assert torch.equal(given(x, y, class_weights=w), own(x, y))


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SparseAdam([weights], lr=0.1),
        lambda weights: torch.optim.Adagrad([weights], lr=0.1),
        lambda weights: torch.optim.SGD([weights], lr=0.1),
    ],
    ids=["SparseAdam", "Adagrad", "SGD"],
)
@pytest.mark.filterwarnings(
    "ignore:Sparse invariant checks are implicitly disabled"
)  # torch's warning about its own Adagrad
def test_the_stated_optimizers_move_the_chosen_rows_alone(make) -> None:
    loss = NormSoftmax(50, 6, class_fraction=0.2)
    optimizer, before = make(loss.class_weights), loss.class_weights.detach().clone()
    loss(torch.randn(5, 6), torch.arange(5)).backward()
    optimizer.step()
    moved = (loss.class_weights.detach() != before).any(dim=1)
    assert moved.sum() == 10
    assert moved[:5].all()


def test_the_seed_determines_the_choices_and_each_call_draws_another() -> None:
    def choices(loss: NormSoftmax) -> list[list[int]]:
        chosen = []
        for _ in range(3):
            loss.class_weights.grad = None
            loss(x, y).backward()
            chosen.append(loss.class_weights.grad.coalesce().indices().flatten().tolist())
        return chosen

    x, y = torch.randn(4, 6), torch.tensor([10, 20, 30, 40])
    first = choices(NormSoftmax(1000, 6, class_fraction=0.1, seed=1))
    assert first == choices(NormSoftmax(1000, 6, class_fraction=0.1, seed=1))
    second = choices(NormSoftmax(1000, 6, class_fraction=0.1, seed=2))
    assert (
        len({tuple(choice) for choice in first + second}) == 6
    )  # nor is one seed's choice that of another seed a step later


def test_a_resumed_run_draws_the_same_subsets() -> None:
    x, y = torch.randn(4, 6), torch.tensor([1, 2, 3, 4])
    straight = NormSoftmax(100, 6, class_fraction=0.2)
    straight(x, y)
    resumed = NormSoftmax(100, 6, class_fraction=0.2)
    resumed.load_state_dict(straight.state_dict())
    assert torch.equal(resumed(x, y), straight(x, y))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"class_fraction is {fraction}; expected a number in \(0, 1\]"):
        NormSoftmax(10, 4, class_fraction=fraction)


def test_memvir_refuses_a_fraction_of_the_classes() -> None:
    with pytest.raises(
        ValueError, match=r"NormSoftmax with class_fraction = 0\.5; expected class_fraction = 1"
    ):
        MemVir(NormSoftmax(10, 4, class_fraction=0.5), 1, 0)


def test_virtual_classes_beside_a_fraction_are_refused() -> None:
    x = torch.randn(3, 4)
    past = Virtual(x, torch.arange(3) + 10, (torch.randn(10, 4),))
    with pytest.raises(ValueError, match=r"class_fraction is 0\.5 and virtual classes were given; expected"):
        NormSoftmax(10, 4, class_fraction=0.5)(x, torch.arange(3), virtual=past)


def test_a_schedule_may_move_the_fraction_to_1_and_the_gradient_stays_as_declared() -> None:
    for first, then in ((0.5, 1.0), (1.0, 0.5)):
        for wrap in (lambda loss: loss, ShardedClasses):
            loss = NormSoftmax(10, 4, class_fraction=first)
            loss.class_fraction = then
            wrap(loss)(torch.randn(3, 4), torch.arange(3)).backward()
            assert loss.class_weights.grad.is_sparse == bool(loss.sparse_parameters())
            assert (loss.class_weights.grad.to_dense() != 0).any(dim=1).sum() == 10 * then
