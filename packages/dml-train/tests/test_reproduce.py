"""The papers' tables: recipes of rows, runs that rows share, pages, and the order of rows."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from train_support.tiny_world import TinyDataset, TinyEvaluator, provide

import dml_train.plugin
from dml_core import DmlError, UnknownName
from dml_train.cli import main
from dml_train.studies.reproduce.page import Order, Standing, compare_order
from dml_train.studies.reproduce.paper import Paper, choose, papers, row_recipe
from dml_train.studies.reproduce.run import reproduce

PAPERS = papers()


@pytest.fixture
def recipe_file(tmp_path, tiny_document) -> Path:
    document = tiny_document(
        training={"steps": 3},
        evaluation={"metrics": ["recall@1", "recall@10"]},
        schedule={"loss.scale": {"kind": "linear", "start": 4.0, "end": 2.0}},
    )
    path = tmp_path / "base.toml"
    path.write_text(tomli_w.dumps(document))
    return path


def paper(recipe_file: Path, rows: list[dict[str, Any]], **changes: Any) -> Paper:
    table = {
        "title": "scale",
        "expected": "more is more",
        "rows": rows,
        "metrics": {"sop": ["recall@1", "recall@10"]},
    }
    table |= {"recipes": {"glyphs": str(recipe_file), "sop": "no-such-recipe"}, **changes}
    about = {
        "title": "Fake",
        "backbone": "a big network",
        "selected_on_test": True,
        "selection": "best of 7",
    }
    return Paper.model_validate({**about, "tables": {"table-2": table}})


ROWS = [
    {"label": "four", "set": ["loss.scale=4.0"], "published": {"sop": [40.0, 50.0]}},
    {"label": "eight", "set": ["loss.scale=8.0"], "published": {"sop": [60.0, math.nan]}},
    {"label": "four again", "published": {"sop": [41.0, 51.0]}},
]


@pytest.fixture
def run(registry, quiet, tmp_path, recipe_file):
    def run(rows=ROWS, names=("fake/2",), table=None, **options):
        known = {"fake": paper(recipe_file, rows, **(table or {}))}
        return reproduce(
            names, tmp_path / "out", known=known, registry=registry, console=quiet, **options
        )

    return run


def rows_of(found) -> list[dict[str, Any]]:
    """Read the rows of the only table of the only page."""
    (table,) = json.loads(found.pages[0].with_suffix(".json").read_text())["tables"]
    return table["rows"]


@pytest.mark.parametrize("name", PAPERS)
def test_published_recalls_rise_with_the_rank_and_labels_differ(name):
    for key, table in PAPERS[name].tables.items():
        for row in table.rows:
            for dataset, values in row.published.items():
                recalls = [
                    (int(metric.removeprefix("recall@")), value)
                    for metric, value in zip(table.metrics[dataset], values, strict=True)
                    if metric.startswith("recall@") and not math.isnan(value)
                ]
                assert [v for _, v in sorted(recalls)] == sorted(v for _, v in recalls), (
                    key,
                    row.label,
                )
        assert len({row.label for row in table.rows}) == len(table.rows), key


def test_a_rows_recipe_has_replacements_then_drops_then_overrides(recipe_file, registry):
    row = {
        "label": "other",
        "replace": {
            "loss": {"name": "tiny", "scale": 2.0},
            "sampler": {"name": "shuffled", "batch_size": 6},
        },
        "drop": ['schedule."loss.scale"'],
        "set": ["loss.noise=0.2", "training.steps=5"],
        "on": {"glyphs": ["loss.noise=0.3"]},
    }
    table = paper(recipe_file, [row], set=["loss.noise=0.1", "embedding.dim=4"]).tables["table-2"]
    made = row_recipe(
        table, table.rows[0], "glyphs", registry, seed=2, overrides=("training.steps=6",)
    )
    assert made is not None
    assert (made.loss["scale"], made.loss["noise"], made.schedule) == (2.0, 0.3, {})
    assert (made.sampler["name"], made.embedding.dim) == ("shuffled", 4)
    assert (made.training.steps, made.training.seed) == (6, 5)
    assert row_recipe(table, table.rows[0], "cub", registry) is None


def test_runs_that_rows_share_are_trained_once_and_finished_runs_are_kept(run, tmp_path):
    first = run(ROWS, table={"set": ["loss.noise=0.0"]})
    assert (
        len(list((tmp_path / "out/runs").iterdir())) == 2
    )  # the rows "four" and "four again" share a run
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/runs").rglob("evaluation.json")}
    again = run(ROWS, table={"set": ["loss.noise=0.0"]}, seeds=2)
    assert first.pages == again.pages
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    assert len(list((tmp_path / "out/runs").iterdir())) == 4
    rows = {row["label"]: row for row in rows_of(again)}
    assert rows["four"]["measured"] == rows["four again"]["measured"]
    assert len(rows["eight"]["measured"]["recall@1"]) == 2
    assert rows["eight"]["published"] == {"sop": {"recall@1": 60.0, "recall@10": None}}


def test_the_page_shows_published_and_measured_values_and_names_those_not_comparable(run):
    found = run(seeds=2)
    text = found.pages[0].read_text()
    assert found.pages[0].name == "fake.md"  # a page for all tables of a paper, here a single table
    assert "`dml reproduce fake/2 --seeds 2`" in text
    assert "| published SOP R@1 | published SOP R@10 | measured R@1 | measured R@10 |" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| eight")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[:3] == ["eight", "(60.0)", "–"]
    assert "±" in cells[3]
    assert "Not comparable: measured on glyphs" in text
    assert "selected on the test split (best of 7)" in text
    assert "Order by SOP's R@1" in text
    assert found.left_out == []  # SOP needs --data, which wasn't given
    text = run(overrides=("training.steps=2",)).pages[0].read_text()
    assert "every recipe was changed by training.steps=2" in text
    assert "one seed; the interval of a recall is over its queries" in text


def test_a_failed_row_is_named_and_the_others_run(run, registry):
    bad = {
        "label": "bad",
        "set": ["sampler.classes_per_batch=100"],
        "published": {"sop": [1.0, 2.0]},
    }
    found = run([bad, *ROWS], seeds=2)
    assert len(found.faults) == 2
    text = found.pages[0].read_text()
    assert text.count("**bad** failed: ") == 1  # once for both seeds
    (line,) = [line for line in text.splitlines() if line.startswith("| bad")]
    assert line == "| bad | (1.0) | (2.0) | – | – | – | – | 0 |"


def test_a_row_published_alone_shows_its_figure_and_is_neither_run_nor_failed_nor_compared(
    run, tmp_path
):
    alone = {
        "label": "HTL",
        "published_only": "needs a tree of classes",
        "published": {"sop": [99.0, 99.0]},
    }
    found = run([alone, *ROWS])
    assert found.faults == []
    assert len(list((tmp_path / "out/runs").iterdir())) == 2
    text = found.pages[0].read_text()
    assert "| HTL | (99.0) | (99.0) | – | – | – | – | – |" in text
    assert "- Published alone: HTL. Needs a tree of classes." in text
    assert "of 3 pairs of rows" in text  # rows without runs aren't compared
    row, *others = rows_of(found)
    assert (row["published_only"], row["measured"], row["runs"]) == (
        "needs a tree of classes",
        {},
        [],
    )
    assert all(other["published_only"] is None for other in others)


def test_a_table_of_which_no_row_runs_shows_its_figures_of_all_data_sets(run, tmp_path):
    alone = [
        {
            "label": "folds",
            "published_only": "needs four networks",
            "published": {"sop": [65.65, 70.0]},
        }
    ]
    found = run(alone, table={"recipes": {}})
    text = found.pages[0].read_text()
    assert "## fake/table-2: scale" in text
    assert "| | published SOP R@1 | published SOP R@10 | s |".replace("| |", "|  |") in text
    assert "| folds | 65.65 | 70.00 | – |" in text
    assert not (tmp_path / "out/runs").exists()
    assert (
        json.loads(found.pages[0].with_suffix(".json").read_text())["tables"][0]["dataset"] is None
    )


def test_a_row_whose_own_component_no_plugin_provides_fails_and_the_others_run(run):
    rival = {
        "label": "rival",
        "replace": {"loss": {"name": "pml/NoLoss"}},
        "published": {"sop": [1.0, 2.0]},
    }
    found = run([rival, *ROWS])
    assert [fault.split(":")[0] for fault in found.faults] == ["rival"]
    text = found.pages[0].read_text()
    assert "**rival** failed: " in text
    assert "unknown loss 'pml/NoLoss'" in text
    with pytest.raises(UnknownName, match="pml/NoLoss"):  # here the recipes of all rows are wrong
        run(ROWS, overrides=('loss={name="pml/NoLoss"}',))


LEVELS = {
    "set": [
        'backbone={name="small-conv", widths=[8, 16], norm="group", levels=["block1", "block2"]}'
    ],
    "drop": ['schedule."loss.scale"'],
}


def test_rows_of_other_levels_share_a_run_and_measure_their_part_of_its_embedding(run, tmp_path):
    rows = [
        {"label": "both", **LEVELS, "published": {"sop": [3.0, 4.0]}},
        {
            "label": "low",
            **LEVELS,
            "levels": {"glyphs": ["block1"]},
            "published": {"sop": [1.0, 2.0]},
        },
        {
            "label": "high",
            **LEVELS,
            "levels": {"glyphs": ["block2"]},
            "published": {"sop": [2.0, 3.0]},
        },
    ]
    found = run(rows)
    (folder,) = (tmp_path / "out/runs").iterdir()
    made = rows_of(found)
    assert [row["runs"] for row in made] == [[folder.name]] * 3
    embeddings, labels = np.load(folder / "embeddings.npy"), np.load(folder / "labels.npy")
    half = embeddings.shape[1] // 2
    for row, columns in zip(made, (slice(None), slice(half), slice(half, None)), strict=True):
        expected = TinyEvaluator(["recall@1", "recall@10"]).evaluate(embeddings[:, columns], labels)
        assert row["measured"]["recall@1"] == [expected["recall@1"]]
        assert row["measured"]["recall@10"] == [expected["recall@10"]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"set": ["loss.slope=1"]}, "no option 'slope'"),
        ({"drop": ["loss.slope"]}, "no key 'loss.slope'"),
        (
            {**LEVELS, "levels": {"glyphs": ["block3"]}},
            "no level 'block3'.*levels.*: block1, block2",
        ),
    ],
)
def test_a_row_that_changes_what_the_recipe_lacks_is_named(recipe_file, registry, row, message):
    table = paper(recipe_file, [{"label": "odd", **row}]).tables["table-2"]
    with pytest.raises(DmlError, match=f"row 'odd' on glyphs: .*{message}"):
        row_recipe(table, table.rows[0], "glyphs", registry)


BOTH = {"sop": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"published_only": "why", "published": {"sop": [math.nan, math.nan]}},
            "without a published figure",
        ),
        (
            {"published_only": "why", "published": BOTH, "drop": ["loss.scale"]},
            "published_only and drop; a row that isn't run has no recipe",
        ),
        ({"levels": {"cub": ["block1"]}, "published": BOTH}, "levels on cub, for which it has no"),
        ({"published": {"cub": [1.0, 2.0]}}, "2 figures for cub, where the table has 0 metrics"),
        ({"published": {"sop": [1.0, 101.0]}}, "aren't percentages"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(row, message, recipe_file):
    with pytest.raises(ValueError, match=f"row 'bad': .*{message}"):
        paper(recipe_file, [{"label": "bad", **row}])
    with pytest.raises(ValueError, match="row 'bad': no recipe for any of its data sets"):
        paper(recipe_file, [{"label": "bad", "published": BOTH}], recipes={})


def test_missing_data_sets_are_listed_with_the_reason(run, tmp_path):
    with pytest.raises(
        DmlError, match=r"no data set of these tables was found:\n  fake/table-2 on sop: "
    ):
        run(data=tmp_path)


class Sop(TinyDataset):
    """A published data set in a folder."""

    def __init__(self, root: str, seed: int = 0) -> None:
        super().__init__(seed=seed)
        if not (Path(root) / "images.txt").is_file():
            raise DmlError(f"no images.txt in {root}")


@pytest.mark.parametrize("place", ["", "sop"])
def test_a_row_on_the_papers_data_is_compared(place, registry, quiet, tmp_path, recipe_file):
    folder = tmp_path / "data" / place
    folder.mkdir(parents=True)
    (folder / "images.txt").touch()
    registry.plugins.manager.unregister(
        dml_train.plugin
    )  # the data set 'sop' needs the published images
    provide(registry, "datasets", "sop", Sop)
    settings = ['dataset.name="sop"', "logging.loggers=[]"]
    known = paper(recipe_file, ROWS[:1], recipes={"sop": str(recipe_file)}, set=settings)
    known = known.model_copy(update={"selected_on_test": False})
    where = {"registry": registry, "console": quiet, "data": tmp_path / "data"}
    text = (
        reproduce(("fake",), tmp_path / "out", known={"fake": known}, **where).pages[0].read_text()
    )
    assert "fake/table-2 on SOP" in text
    assert "| four | 40.0 | 50.0 |" in text
    assert "Not comparable" not in text
    (run,) = (tmp_path / "out/runs").iterdir()
    made = tomllib.loads((run / "recipe.toml").read_text())
    assert made["dataset"]["root"] == str(folder)
    assert made["evaluation"]["metrics"] == ["recall@1", "recall@10", "map@r"]


def test_tables_are_chosen_by_name_and_wrong_ones_named_with_the_nearest():
    assert choose(("ice/2", "ice/table-6", "memvir", "ice/2"), PAPERS) == {
        "ice": ["table-2", "table-6"],
        "memvir": list(PAPERS["memvir"].tables),
    }
    with pytest.raises(UnknownName, match="no paper 'icy'; did you mean 'ice'"):
        choose(("icy",), PAPERS)
    with pytest.raises(UnknownName, match=r"ice does not contain '9'.*it has: table-2"):
        choose(("ice/9",), PAPERS)


def test_without_a_name_the_command_lists_every_table(registry):
    result = CliRunner().invoke(main, ["reproduce"], obj=registry, terminal_width=200)
    assert result.exit_code == 0
    for name, of in PAPERS.items():
        assert all(f"{name}/{key}" in result.output for key in of.tables)


rows_with_seeds = st.lists(
    st.tuples(st.integers(0, 100), st.integers(-3, 3)), min_size=2, max_size=7
)


@given(rows_with_seeds)
def test_rows_in_the_published_order_all_agree_and_reversed_ones_all_disagree(rows):
    standings = [Standing(frozenset(), float(v), [v / 100, v / 100]) for v, _ in rows]
    found = compare_order(standings)
    assert found == Order(found.pairs, found.pairs, found.pairs, 0)
    turned = compare_order(
        [Standing(s.groups, s.published, [-v for v in s.measured]) for s in standings]
    )
    assert turned == Order(found.pairs, 0, 0, found.pairs)


@given(rows_with_seeds)
def test_noise_between_seeds_makes_an_order_unsure(rows):
    # The seeds disagree about every pair, by equal differences.
    standings = [Standing(frozenset(), float(v), [v, -v]) for v, _ in rows]
    found = compare_order(standings)
    assert (found.surely_same, found.surely_opposite) == (0, 0)


def test_rows_are_compared_within_their_groups_unless_published_equal_or_missing():
    standings = [
        Standing(frozenset({"a", "x"}), 1.0, [0.1]),
        Standing(frozenset({"a"}), 2.0, [0.2]),
        Standing(frozenset({"b", "x"}), 3.0, [0.3]),
        Standing(frozenset({"b"}), 3.0, [0.9]),
        Standing(frozenset({"b"}), math.nan, [0.9]),
    ]
    assert compare_order(standings) == Order(2, 2, None, None)


def test_a_pending_table_shows_published_figures_until_there_is_data(tmp_path):
    done = CliRunner().invoke(main, ["reproduce", "vit/table", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (
        "| OML, ViT-S/16 from DINO | 83.7 | 90.7 | 86.6 | 92.1 | not yet, no such data here | – |"
        in done.output
    )
    assert "| 89.2 | 97.3 | 74.5 | 86.7 | – | – |" in done.output
