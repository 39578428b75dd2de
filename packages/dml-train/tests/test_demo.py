"""The demo without the extras; tests/integration runs all of it."""

from __future__ import annotations

import pytest

import dml_core.plugin
import dml_train.plugin
from dml_core import DmlError, Plugins, Registry
from dml_train.demo import run_demo


@pytest.fixture
def bare_registry():
    """dml-core and dml-train without the extras."""
    plugins = Plugins()
    plugins.register(dml_core.plugin, distribution="dml-core")
    plugins.register(dml_train.plugin, distribution="dml-train")
    return Registry(plugins)


def test_without_the_extras_it_names_what_to_install_and_writes_nothing(bare_registry, out):
    with pytest.raises(DmlError, match=r"unknown loss 'norm-softmax'[\s\S]*pip install 'dml-train\[all\]'"):
        run_demo(out, registry=bare_registry)
    assert not out.exists()
