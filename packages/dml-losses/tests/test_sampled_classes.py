"""Class losses on a random part of the classes."""

from __future__ import annotations

import math

import pytest
import torch
from losses_support.registered import CLASS_LOSSES, build
from torch.autograd import grad

import dml_losses as dml
from dml_losses import MemVir, NormSoftmax, SampledClasses, ShardedClasses
from dml_losses.sampled_classes import choose_classes


def sampled(num_classes: int, fraction: float = 0.2, seed: int = 0) -> SampledClasses:
    return SampledClasses(NormSoftmax(num_classes, 6), fraction, seed)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("num_classes", [1, 7, 1001])
def test_the_subset_holds_the_batchs_classes_once_and_has_the_expected_size(
    fraction: float, num_classes: int
) -> None:
    labels = torch.randint(num_classes, (12,), generator=generator(0))
    subset, among = choose_classes(labels, num_classes, fraction, generator(1))
    assert torch.equal(subset, subset.unique())
    assert torch.equal(subset[among], labels)
    assert 0 <= int(subset.min()) <= int(subset.max()) < num_classes
    assert len(subset) == max(math.ceil(fraction * num_classes), len(labels.unique()))


@pytest.mark.parametrize("fraction", [0.15, 0.5])  # drawn by rejection and by a permutation
def test_the_other_classes_are_chosen_without_bias(fraction: float) -> None:
    """3 of 40 classes are in the batch: every other class should be drawn with probability k/37."""
    labels, rounds = torch.tensor([0, 17, 39, 17]), 4000
    counts = torch.zeros(40)
    for seed in range(rounds):
        subset, _ = choose_classes(labels, 40, fraction, generator(seed))
        counts[subset] += 1
    others = torch.ones(40, dtype=torch.bool)
    others[labels] = False
    assert (counts[~others] == rounds).all()
    chance = (40 * fraction - 3) / 37
    deviation = (counts[others] / rounds - chance).abs().max()
    assert deviation < 5 * (chance * (1 - chance) / rounds) ** 0.5


@pytest.mark.parametrize("fraction", [0.15, 0.5])  # drawn by rejection and by a permutation
def test_torchs_default_device_changes_nothing(fraction: float) -> None:
    labels = torch.tensor([0, 17, 39, 17])
    expected = choose_classes(labels, 40, fraction, generator(0))
    with torch.device("meta"):
        got = choose_classes(labels, 40, fraction, generator(0))
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_the_loss_and_gradient_are_those_of_the_chosen_classes_with_all_their_centres(name) -> None:
    inner = build(name, 50, 6).double().eval()
    loss = SampledClasses(inner, 0.2, seed=3)
    assert loss.sparse_parameters() == ("class_weights",)
    x, y = (
        torch.randn(5, 6, dtype=torch.float64, requires_grad=True),
        torch.tensor([4, 40, 4, 9, 0]),
    )
    value = loss(x, y)
    gradient = grad(value, loss.class_weights)[0].coalesce()
    rows, centers = gradient.indices()[0], loss.centers_per_class
    classes = rows[::centers] // centers
    assert torch.equal(rows, (classes[:, None] * centers + torch.arange(centers)).flatten())
    assert len(classes) == 10
    weights = loss.class_weights.detach()[rows].requires_grad_()
    expected = inner(x, torch.searchsorted(classes, y), weights)
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(gradient.values(), grad(expected, weights)[0])


def test_given_class_weights_replace_its_own() -> None:
    given, own = (sampled(50) for _ in range(2))
    x, y, w = torch.randn(5, 6), torch.arange(5), torch.randn(50, 6)
    own.class_weights.data = w
    assert torch.equal(given(x, y, w), own(x, y))


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SparseAdam([weights], lr=0.1),
        lambda weights: torch.optim.Adagrad([weights], lr=0.1),
        lambda weights: torch.optim.SGD([weights], lr=0.1),
    ],
    ids=["SparseAdam", "Adagrad", "SGD"],
)
# torch warns about torch's Adagrad.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_the_stated_optimizers_move_the_chosen_rows_alone(make) -> None:
    loss = sampled(50)
    optimizer, before = make(loss.class_weights), loss.class_weights.detach().clone()
    loss(torch.randn(5, 6), torch.arange(5)).backward()
    optimizer.step()
    moved = (loss.class_weights.detach() != before).any(dim=1)
    assert moved.sum() == 10
    assert moved[:5].all()


def test_the_seed_determines_the_choices_and_each_call_draws_another() -> None:
    def choices(loss: SampledClasses) -> list[list[int]]:
        chosen = []
        for _ in range(3):
            loss.class_weights.grad = None
            loss(x, y).backward()
            chosen.append(loss.class_weights.grad.coalesce().indices().flatten().tolist())
        return chosen

    x, y = torch.randn(4, 6), torch.tensor([10, 20, 30, 40])
    first = choices(sampled(1000, 0.1, seed=1))
    assert first == choices(sampled(1000, 0.1, seed=1))
    second = choices(sampled(1000, 0.1, seed=2))
    # If seed and count were only added, seed 1's second choice would be seed 2's first.
    assert len({tuple(choice) for choice in first + second}) == 6


def test_a_resumed_run_draws_the_same_subsets() -> None:
    x, y = torch.randn(4, 6), torch.tensor([1, 2, 3, 4])
    straight = sampled(100)
    straight(x, y)
    resumed = sampled(100)
    resumed.load_state_dict(straight.state_dict())
    assert torch.equal(resumed(x, y), straight(x, y))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        *(
            (lambda f=f: sampled(10, f), ValueError,
             rf"class_fraction is {f}; expected a number in \(0, 1\]")
            for f in (0.0, -0.1, 1.1, float("nan"))
        ),
        (lambda: sampled(10, seed=-1), ValueError, "seed is -1; expected at least 0"),
        (lambda: sampled(10, seed=0.5), TypeError, r"seed is 0\.5; expected an integer"),
        (lambda: SampledClasses(dml.SupCon(), 0.5), TypeError,
         "SupCon, which has no class_weights; expected a class"),
        (lambda: SampledClasses(MemVir(NormSoftmax(4, 6), 1, 0), 0.5), TypeError,
         "MemVir, which wraps another"),
        (lambda: SampledClasses(ShardedClasses(NormSoftmax(4, 6)), 0.5), TypeError,
         "put ShardedClasses around Sample"),
        (lambda: ShardedClasses(SampledClasses(dml.ProxyAnchor(4, 6), 0.5)), TypeError,
         "can't be sharded"),
        (lambda: MemVir(sampled(10, 0.5), 1, 0), ValueError,
         r"SampledClasses with class_fraction = 0\.5; expected class_fraction = 1"),
    ],
)  # fmt: skip
def test_wrong_arguments_raise(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_schedule_may_move_the_fraction_to_1_and_the_gradient_stays_as_declared() -> None:
    for first, then in ((0.5, 1.0), (1.0, 0.5)):
        for wrap in (lambda loss: loss, ShardedClasses):
            loss = sampled(10, first)
            loss.class_fraction = then
            wrap(loss)(torch.randn(3, 6), torch.arange(3)).backward()
            assert loss.class_weights.grad.is_sparse == bool(loss.sparse_parameters())
            assert (loss.class_weights.grad.to_dense() != 0).any(dim=1).sum() == 10 * then
