"""A loss warns once if no optimizer updates the parameters, and does not warn otherwise."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterable

import pytest
import torch

import dml_losses as dml

STEPS = 150  # the warning is raised after 100 gradients
Steps = Callable[[Iterable[torch.nn.Parameter]], Callable[[], object]]


def train(loss: torch.nn.Module, step: Callable[[], object], steps: int = STEPS) -> list[str]:
    """Compute gradients; call `step` after each gradient. Return the warnings."""
    embeddings, labels = torch.randn(6, 4), torch.arange(6) % 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            loss(embeddings.requires_grad_(), labels).backward()
            step()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: dml.NormSoftmax(3, 4), r"class_weights of shape \(3, 4\)"),
        (
            lambda: dml.SampledClasses(dml.NormSoftmax(3, 4), 0.5),
            r"class_weights of shape \(3, 4\)",
        ),
        (lambda: dml.SoftTriple(3, 4, centers_per_class=2), r"class_weights of shape \(6, 4\)"),
        (lambda: dml.Matryoshka(dml.ArcFace(3, 4), [2, 4]), r"class_weights of shape \(3, 4\)"),
        (lambda: dml.MemVir(dml.NormSoftmax(3, 4), 1, 0), r"class_weights of shape \(3, 4\)"),
        (lambda: dml.ShardedClasses(dml.ArcFace(3, 4)), r"class_weights of shape \(3, 4\)"),
        (dml.InfoNCE, r"log_scale of shape \(\)"),
        (dml.SigLIP, r"log_scale of shape \(\)"),
    ],
)
def test_parameters_that_no_optimizer_has_are_reported_once(make, name) -> None:
    (message,) = train(make(), lambda: None)
    with pytest.raises(
        UserWarning, match=f"{name} got 100 gradients and never changed: give the loss's"
    ):
        warnings.warn(message, stacklevel=1)


def _in_place_past_autograd(parameters: Iterable[torch.nn.Parameter]) -> Callable[[], object]:
    (only,) = parameters
    return lambda: only.data.sub_(1e-3 * only.grad.to_dense())


@pytest.mark.parametrize(
    "steps",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1).step,
        # A schedule can start with a rate of 0, although the optimizer has the parameters.
        lambda parameters: torch.optim.SGD(parameters, lr=0.0).step,
        lambda parameters: torch.optim.AdamW(parameters, fused=True).step,
        lambda parameters: torch.optim.AdamW(parameters, foreach=True).step,
        _in_place_past_autograd,
    ],
    ids=["sgd", "zero-rate", "fused", "foreach", "data"],
)
def test_updated_parameters_are_not_reported(steps: Steps) -> None:
    loss = dml.NormSoftmax(3, 4)
    assert train(loss, steps(loss.parameters())) == []
    assert (
        not loss.class_weights._post_accumulate_grad_hooks
    )  # the hook should be removed by the check


def test_neither_frozen_nor_accumulated_gradients_are_reported() -> None:
    frozen = dml.NormSoftmax(3, 4)
    frozen.class_weights.requires_grad_(False)
    assert train(frozen, lambda: None) == []
    assert train(dml.NormSoftmax(3, 4), lambda: None, steps=64) == []


def test_a_loss_moved_between_gradients_is_still_compared() -> None:
    loss = dml.NormSoftmax(3, 4)
    assert train(loss, lambda: None, steps=10) == []
    (message,) = train(loss.to(torch.float64), lambda: None)
    assert "never changed" in message


def test_copies_and_pickles_of_a_loss_warn_of_nothing() -> None:
    loss = dml.NormSoftmax(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for copied in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
            assert torch.equal(copied.class_weights, loss.class_weights)
