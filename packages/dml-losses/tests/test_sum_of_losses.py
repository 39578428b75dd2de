"""A sum of losses is the sum, its terms keep their state, and schedules and recipes address them by
name.
"""

from __future__ import annotations

import pytest
import torch

import dml_losses as dml
from dml_core import InvalidOption, LoggedLoss, Plugins, Registry, Schedules
from dml_losses import plugin

CONTEXT = {"num_classes": 4, "embedding_dim": 6, "steps_per_epoch": 5, "seed": 0}
X = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4
TABLE = {
    "name": "sum",
    "weights": {"pairs": 0.5, "spread": 0.1},
    "terms": {
        "class": {"name": "sampled-classes", "class_fraction": 0.5, "loss": {"name": "cos-face"}},
        "shards": {"name": "sharded-classes", "loss": {"name": "arc-face"}},
        "pairs": {"name": "cross-batch-memory", "capacity": 24, "loss": {"name": "sup-con"}},
        "spread": {"name": "koleo"},
    },
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    plugins = Plugins()
    plugins.register(plugin, distribution="dml-losses", version="0.1.0")
    return Registry(plugins)


def test_a_recipes_sum_has_the_value_and_gradients_of_its_terms(registry: Registry) -> None:
    """Compare with separate terms that have the same initial weights, at each of three steps."""
    torch.manual_seed(0)
    loss = registry.build("losses", TABLE, CONTEXT).double()
    torch.manual_seed(0)
    terms = {
        name: registry.build("losses", table, CONTEXT).double()
        for name, table in TABLE["terms"].items()
    }
    weights = {"class": 1.0, "shards": 1.0, **TABLE["weights"]}
    for step in range(3):
        x = (X + step).requires_grad_()
        values = {name: term(x, Y) for name, term in terms.items()}
        expected = sum(weights[name] * value for name, value in values.items())
        value = loss(x, Y)
        torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
        torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))
        logged = loss.logged_values()
        assert logged == {f"terms.{name}": value.detach() for name, value in values.items()}
    assert isinstance(loss, LoggedLoss)


def test_weights_and_options_of_terms_move_by_path() -> None:
    loss = dml.SumOfLosses({"a": dml.ArcFace(4, 6), "b": dml.CrossBatchMemory(dml.SupCon(), 8)})
    schedules = {
        "loss.weights.b": lambda step: step / 4,
        "loss.terms.a.margin": lambda step: step / 10,
        "loss.terms.b.loss.temperature": lambda step: 1 + step,
    }
    Schedules(schedules, {"loss": loss}).apply(3)
    assert (loss.weights.a, loss.weights.b, loss.terms.a.margin) == (1.0, 0.75, 0.3)
    assert loss.terms.b.loss.temperature == 4.0
    assert repr(loss).startswith("SumOfLosses(\n  a=1.0, b=0.75\n")


@pytest.mark.parametrize(
    ("terms", "weights", "error", "message"),
    [
        ({}, None, ValueError, "terms is empty; expected at least one loss"),
        ({"a": 3}, None, TypeError, "terms.a is 3; expected a loss"),
        (
            {"keys": dml.KoLeo()},
            None,
            ValueError,
            "a term is called 'keys'; expected a different name",
        ),
        (
            {"a.b": dml.KoLeo()},
            None,
            ValueError,
            "a term is called 'a.b'; expected a different name",
        ),
        (
            {"pairs": dml.KoLeo()},
            {"pair": 1.0},
            ValueError,
            "weights has 'pair'; did you mean 'pairs'?",
        ),
        (
            {"a": dml.KoLeo()},
            {"a": -1.0},
            ValueError,
            "weights.a is -1.0; expected a finite number of at",
        ),
        (
            {"a": dml.KoLeo()},
            {"a": "1"},
            TypeError,
            "weights.a is '1'; expected a finite number of at least",
        ),
    ],
)
def test_bad_terms_and_weights_raise(terms, weights, error, message) -> None:
    with pytest.raises(error, match=message):
        dml.SumOfLosses(terms, weights)


def test_mistakes_in_terms_are_found_before_anything_is_made(registry: Registry) -> None:
    for term, message in (
        ({"name": "arc-face", "margn": 0.1}, "no option 'margn'; did you mean 'margin'"),
        ({"name": "arc-fase"}, "unknown loss 'arc-fase'; did you mean 'arc-face'"),
        ({"margin": 0.1}, "a loss table needs a key 'name' with a string; got the keys: margin"),
    ):
        table = {"name": "sum", "terms": {"good": {"name": "koleo"}, "bad": term}}
        with pytest.raises(InvalidOption.__base__, match=message):
            registry.check("losses", table)
