"""All rows of the papers' tables must have valid recipes for the table's data sets."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from dml_core import registry
from dml_train.studies.reproduce.paper import GLYPHS, papers, row_recipe

ON_GLYPHS = {
    "ice": ["table-2", "table-4", "table-5", "table-6"],
    "heated-up": ["table-5"],
    "norm-softmax": ["table-4", "table-5", "figure-2", "figure-3", "figure-4"],
    "rll": [f"table-{n}" for n in range(6, 16)],
    "memvir": ["table-1", "table-4", "figure-3"],
    "vit": [],
    "reid": [],
}
# Number of runs that a table repeats. Table 15 has T_1 = T_2 in both halves, on three data sets. In
# table 1, the rows with 100 % of the classes repeat the rows with batches of 128, with and without
# MemVir, on two data sets.
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
                    # The row can't be run, or recipes or figures are only given for other data
                    # sets.
                    assert row.published_only or row.recipes or dataset not in row.published, (
                        f"{key}, {row.label}: no recipe on {dataset}"
                    )
                    continue
                assert recipe.dataset["name"] == dataset
                measured = row.evaluator, row.levels.get(dataset)
                made[dataset, row.label] = json.dumps([recipe.to_dict(), measured])
        assert sum(count > 1 for count in Counter(made.values()).values()) == TWICE.get(
            (name, key), 0
        ), key


def test_the_levels_of_table_6_and_the_h_rows_of_table_1_share_a_network():
    tables = papers()["rll"].tables
    labels = {"table-6": None, "table-1": ["RLL-Simpler-H, 64", "RLL-Simpler-(L,M,H), 64 × 3"]}
    recipes = [
        row_recipe(tables[key], row, "sop", registry(), root="data")
        for key, chosen in labels.items()
        for row in tables[key].rows
        if chosen is None or row.label in chosen
    ]
    assert len(recipes) == 9
    assert all(recipe == recipes[0] for recipe in recipes)


# The warning is raised by pytorch-metric-learning's histogram loss.
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
@pytest.mark.parametrize("name", papers())
def test_every_loss_that_a_row_names_has_a_finite_gradient(name):
    pytest.importorskip("pytorch_metric_learning")
    rows = torch.randn(60, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.arange(60) % 12
    context = {"num_classes": 30, "embedding_dim": 16, "steps_per_epoch": 5, "seed": 0}
    for table in papers()[name].tables.values():
        losses = {}
        for dataset in table.datasets():
            for row in table.rows:
                recipe = row_recipe(
                    table, row, dataset, registry(), root="data" if dataset != GLYPHS else None
                )
                if recipe is not None and "loss" in row.replace:
                    losses[json.dumps(recipe.loss)] = recipe.loss
        for table_of_loss in losses.values():
            loss = registry().build("losses", table_of_loss, context)
            for _ in range(2):  # the second step uses the memory
                value = loss(rows, labels)
            (gradient,) = torch.autograd.grad(value, rows)
            assert value > 0, table_of_loss
            assert gradient.isfinite().all(), table_of_loss
            assert gradient.abs().max() > 0, table_of_loss


def test_tables_that_run_without_a_download_are_those_of_the_pages():
    found = {
        name: [key for key, table in paper.tables.items() if GLYPHS in table.datasets()]
        for name, paper in papers().items()
    }
    assert {name: sorted(keys) for name, keys in found.items()} == {
        name: sorted(keys) for name, keys in ON_GLYPHS.items()
    }
