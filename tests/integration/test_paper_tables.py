"""Every row of the papers' tables has a valid recipe on every data set of its table."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dml_core import registry
from dml_train.studies.reproduce.paper import GLYPHS, papers, row_recipe

ON_GLYPHS = {
    "ice": ["table-2", "table-4", "table-5", "table-6"],
    "heated-up": ["table-5"],
    "norm-softmax": ["table-4", "table-5", "figure-2", "figure-4"],
    "rll": [f"table-{n}" for n in range(6, 16)],
    "memvir": ["table-1", "table-4"],
}
# Runs that one table has twice: T_1 = T_2 is in both halves of table 15, on three data sets; batches of 128 hold all
# classes of table 1, with and without MemVir, on two data sets.
TWICE = {("rll", "table-15"): 3, ("memvir", "table-1"): 4}


@pytest.mark.parametrize("name", papers())
def test_every_row_has_a_recipe_on_every_data_set_of_its_table(name):
    for key, table in papers()[name].tables.items():
        made = {}
        for dataset in table.datasets():
            root = None if dataset == GLYPHS else "data"
            for row in table.rows:
                recipe = row_recipe(table, row, dataset, registry(), root=root)
                if recipe is None:
                    assert row.recipes, (
                        f"{key}, {row.label}: no recipe on {dataset}"
                    )  # it has its own recipes, on other data sets
                    continue
                assert recipe.dataset["name"] == dataset
                made[dataset, row.label] = json.dumps([recipe.to_dict(), row.evaluator])
        assert sum(count > 1 for count in Counter(made.values()).values()) == TWICE.get((name, key), 0), key


def test_tables_that_run_without_a_download_are_those_of_the_pages():
    found = {
        name: [key for key, table in paper.tables.items() if GLYPHS in table.datasets()]
        for name, paper in papers().items()
    }
    assert {name: sorted(keys) for name, keys in found.items()} == {
        name: sorted(keys) for name, keys in ON_GLYPHS.items()
    }
