"""The data set of the plugin guide and the losses of the pages must satisfy the contracts."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_core.testing import DatasetContract, LossContract

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide/plugins.md"
LOSSES = {
    "README.md": "SpreadOut",
    "docs/guide/plugins.md": "CentroidLoss",
    "docs/tutorials/your-own-loss.md": "SpreadOut",
    "packages/dml-core/README.md": "CentroidLoss",
}
LOSS_TESTS = [name for name in dir(LossContract) if name.startswith("test_")]
# Classes that exec made can't be pickled.
UNTRIED = "test_loader_processes_can_receive_it"
TESTS = [name for name in dir(DatasetContract) if name.startswith("test_") and name != UNTRIED]


@pytest.fixture(scope="module")
def worked() -> dict[str, Any]:
    section = (
        GUIDE.read_text(encoding="utf-8")
        .partition("## A data set, step by step")[2]
        .partition("\n## ")[0]
    )
    names: dict[str, Any] = {"__name__": "worked"}
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, names)
    return names


@pytest.mark.parametrize("test", TESTS)
def test_the_worked_data_set_keeps_its_contract(worked, tmp_path, monkeypatch, test):
    monkeypatch.chdir(tmp_path)
    getattr(worked["TestSavedArrays"](), test)()


def test_its_groups_keep_the_contract(worked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cameras, images = np.arange(24) // 6, np.zeros((24, 8, 8), np.uint8)
    np.savez("arrays.npz", images=images, labels=np.arange(24) % 6, cameras=cameras)
    dataset = worked["SavedArraysByCamera"]("arrays.npz")
    assert dataset.test.groups.tolist() == cameras[np.arange(24) % 6 >= 3].tolist()
    contract = type("Contract", (DatasetContract,), {"make_dataset": lambda self: dataset})()
    contract.test_groups_are_those_of_queries_and_gallery()
    contract.test_some_query_has_a_match()


def test_its_hook_provides_it(worked):
    (component,) = worked["dml_datasets"]()
    assert [option.name for option in component.options] == ["file", "train_fraction"]


@pytest.mark.parametrize("test", LOSS_TESTS)
@pytest.mark.parametrize("page", LOSSES)
def test_a_pages_loss_keeps_the_contract(page, test):
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = map(
        textwrap.dedent,
        re.findall(r"^ *```python\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE),
    )
    names: dict[str, Any] = {"__name__": "page"}
    exec(
        "import torch\n" + next(block for block in blocks if f"class {LOSSES[page]}(" in block),
        names,
    )
    make = names[LOSSES[page]]
    contract = type("Contract", (LossContract,), {"make_loss": lambda self, classes, dim: make()})
    getattr(contract(), test)()


def test_the_tutorial_counts_the_tests_of_a_loss():
    text = (ROOT / "docs/tutorials/your-own-loss.md").read_text(encoding="utf-8")
    assert f"\n{len(LOSS_TESTS)} passed\n" in text
