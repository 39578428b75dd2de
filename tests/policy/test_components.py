"""The references of all components can be imported; the options can be read."""

from __future__ import annotations

import importlib

import pytest

from dml_core import KINDS, Component, options_of

PLUGINS = ("dml_core.plugin", "dml_losses.plugin", "dml_eval_rs.plugin", "dml_train.plugin")


def components() -> list[Component]:
    found: list[Component] = []
    for name in PLUGINS:
        module = importlib.import_module(name)
        for kind in KINDS:
            found += getattr(module, f"dml_{kind}", list)()
    return found


@pytest.mark.parametrize("component", components(), ids=lambda component: component.name)
def test_the_reference_leads_to_a_factory(component: Component) -> None:
    assert component.options == options_of(component.factory)
    assert not component.takes_any_option
