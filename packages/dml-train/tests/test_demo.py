"""Parts of the demo; tests/integration runs all of it."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

import dml_core.plugin
import dml_train.plugin
from dml_core import DmlError, Plugins, Registry
from dml_train.demo import comparison_table, run_demo


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


def test_a_folder_with_contents_is_refused_unchanged(bare_registry, out):
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(DmlError, match="exists already; nothing was touched"):
        run_demo(out, registry=bare_registry)
    assert [file.name for file in out.iterdir()] == ["mine.txt"]


def test_the_table_fits_eighty_columns():
    metrics = {"recall@1": 0.9, "recall@10": 1.0, "recall@100": 1.0}
    metrics |= {"map@r": 0.51239, "r_precision": 0.6, "nmi": 0.7}
    rows = {
        "untrained network": metrics | {"bytes_per_item": 12_345},
        "its 1024-bit codes": metrics | {"bytes_per_item": 128},
    }
    console = Console(file=StringIO(), width=80)
    console.print(comparison_table(rows, "images"))
    printed = console.file.getvalue()
    assert "…" not in printed
    assert "untrained network " in printed
    for cell in ("0.900", "0.512", "12,345", "128"):
        assert cell in printed
