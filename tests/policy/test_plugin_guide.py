"""The worked data set of the plugin guide runs, and keeps its contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_core.testing import DatasetContract

GUIDE = Path(__file__).parents[2] / "docs/guide/plugins.md"
TESTS = [
    "training_and_evaluation_share_no_class",
    "labels_name_a_class_of_every_item",
    "some_query_has_a_match",
    "groups_are_those_of_queries_and_gallery",
    "relations_list_items_of_the_gallery",
    "items_are_loaded_as_float32_images",
    "an_image_is_a_function_of_its_index_and_seed",
    "pictures_are_for_people",
]


@pytest.fixture(scope="module")
def worked() -> dict[str, Any]:
    section = (
        GUIDE.read_text(encoding="utf-8").partition("## A data set, step by step")[2].partition("\n## ")[0]
    )
    names: dict[str, Any] = {"__name__": "worked"}
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, names)
    return names


@pytest.mark.parametrize("test", TESTS)
def test_the_worked_data_set_keeps_its_contract(worked, tmp_path, monkeypatch, test):
    monkeypatch.chdir(tmp_path)
    getattr(worked["TestSavedArrays"](), f"test_{test}")()


def test_all_of_the_contract_is_tried_but_pickling(worked):
    """Classes that exec made can't be pickled."""
    every = {
        name.removeprefix("test_") for name in dir(worked["TestSavedArrays"]) if name.startswith("test_")
    }
    assert every - set(TESTS) == {"loader_processes_can_receive_it"}


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
