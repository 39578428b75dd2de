"""The search for settings: its space, its data, and that an interruption changes nothing."""

from __future__ import annotations

import functools
import inspect
import io
import json

import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from train_support.tiny_world import TinyDataset

from dml_core import DmlError, InvalidOption
from dml_train.cli import main
from dml_train.cluster.workers import expect
from dml_train.recipe.loading import load_recipe
from dml_train.studies import runs as many_runs
from dml_train.studies.tuning.search import SettingsSearch, best_trial
from dml_train.studies.tuning.searching import run_search
from dml_train.studies.tuning.space import Choice, Range, read_choice, read_range, read_space
from dml_train.studies.tuning.trials import SAMPLER

optuna = pytest.importorskip("optuna", reason="the search needs the extra dml-train[tune]")

SPACE = {"optimizer.lr": Range(1e-3, 1e-1, log=True), "loss.scale": Choice((2.0, 4.0, 8.0))}


@pytest.fixture
def plan(tiny_document, tiny_registry):
    def plan(space=SPACE, folds=None, seed=0, **tables):
        tables.setdefault("validation", {"class_fraction": 0.34, "metric": "recall@1"})
        tables.setdefault("evaluation", {"every": 2, "unit": "step"})
        document = tiny_document(training={"steps": 2, "device": "cpu", "seed": 3}, **tables)
        return SettingsSearch(document, space, folds, seed, tiny_registry)

    return plan


# ------------------------------------------------------------------------------------------------ the space


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.lr=1e-4:1e-2:log", ("optimizer.lr", Range(1e-4, 1e-2, log=True))),
        ("loss.margin=0:0.5", ("loss.margin", Range(0, 0.5))),
        ("sampler.images_per_class=2:5", ("sampler.images_per_class", Range(2, 5))),
    ],
)
def test_a_range_is_read(text, expected):
    assert read_range(text) == expected


def test_a_range_is_of_integers_if_both_ends_are():
    assert Range(2, 5).is_integer
    assert not Range(2, 5.0).is_integer


@pytest.mark.parametrize(
    "text",
    [
        "optimizer.lr",
        "=1:2",
        "a=1",
        "a=1:2:3",
        "a=1:two",
        "a=2:1",
        "a=1:1",
        "a=0:1:log",
        "a=nan:1",
        "a=1:2:log:log",
    ],
)
def test_an_invalid_range_is_refused(text):
    with pytest.raises(InvalidOption, match=r"^range '"):
        read_range(text)


def test_a_choice_is_a_list_of_toml():
    assert read_choice('loss.name=["tiny", "other"]') == ("loss.name", Choice(("tiny", "other")))
    for wrong in ("a=2", "a=[2", "a=[2]", "a=[2, 2]", "a=[[1], [2]]", "=[1, 2]"):
        with pytest.raises(InvalidOption, match=r"^choice '"):
            read_choice(wrong)


def test_a_space_is_read_from_a_file_and_its_mistakes_are_named(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        '["optimizer.lr"]\nlow = 1e-3\nhigh = 0.1\nlog = true\n\n["loss.scale"]\nchoices = [2.0, 4.0, 8.0]\n'
    )
    assert read_space(path) == SPACE
    path.write_text('["optimizer.lr"]\nlow = 1e-3\n')
    with pytest.raises(
        InvalidOption, match=r"space.toml: \['optimizer.lr'\] is .* expected numbers low and high"
    ):
        read_space(path)
    with pytest.raises(DmlError, match="can't read the search space"):
        read_space(tmp_path / "none.toml")


@given(st.floats(1e-6, 1.0), st.booleans(), st.text(max_size=5), st.integers())
def test_tried_values_reach_the_recipe_unchanged(number, flag, text, whole):
    from dml_train.recipe.loading import assign
    from dml_train.studies.tuning.space import as_override

    for value in (number, flag, text, whole):
        document: dict = {}
        assign(document, as_override("table.key", value))
        assert document == {"table": {"key": value}}


# ---------------------------------------------------------------------------------------- refused plans


def test_a_recipe_that_holds_out_nothing_needs_folds(plan):
    with pytest.raises(DmlError, match=r"holds out no classes.*give a number of folds"):
        plan(validation={})
    assert plan(validation={"metric": "recall@1"}, folds=3).folds == 3


def test_a_recipe_that_selects_on_the_test_split_is_refused(plan):
    with pytest.raises(DmlError, match=r"validation.on_test = true; a search selects settings on held-out"):
        plan(validation={"on_test": True, "metric": "recall@1"})


def test_values_that_the_recipe_does_not_take_are_refused_before_anything_runs(plan):
    with pytest.raises(DmlError, match=r"with optimizer.lr = -1.0: .*greater than or equal to 0"):
        plan(space={"optimizer.lr": Range(-1.0, 1.0)})
    with pytest.raises(DmlError, match=r"with loss.slope = 1: .*no option 'slope'"):
        plan(space={"loss.slope": Range(1, 2)})
    with pytest.raises(DmlError, match="there is nothing to search"):
        plan(space={})


# ------------------------------------------------------------------------------------------- the search


def test_no_trial_sees_the_test_split(plan, tmp_path, quiet, monkeypatch):
    make = TinyDataset.__init__

    @functools.wraps(make)
    def unseen(self, *arguments, **options):
        make(self, *arguments, **options)

        def refuse(indices, seeds=None):
            raise AssertionError("the test split was loaded")

        self.test.load = refuse

    monkeypatch.setattr(TinyDataset, "__init__", unseen)
    trials = run_search(plan(folds=3, validation={"metric": "recall@1"}), tmp_path / "out", 2, console=quiet)
    assert [trial.value is not None for trial in trials] == [True, True]
    for path in (tmp_path / "out/trials").rglob("evaluation.json"):
        assert json.loads(path.read_text())["split"] == "validation"
    assert len(list((tmp_path / "out/trials").rglob("evaluation.json"))) == 6


def test_a_trial_s_value_is_the_mean_over_its_folds(plan, tmp_path, quiet):
    (trial,) = run_search(
        plan(folds=3, validation={"metric": "recall@1"}), tmp_path / "out", 1, console=quiet
    )
    values = [
        json.loads((tmp_path / f"out/trials/0000/fold-{fold}/evaluation.json").read_text())["recall@1"]
        for fold in range(3)
    ]
    assert trial.value == pytest.approx(sum(values) / 3)


def test_a_stopped_search_resumes_to_the_same_trials(plan, tmp_path, quiet, monkeypatch):
    whole = run_search(plan(), tmp_path / "whole", 4, console=quiet)
    stops = iter([False, True])
    train = many_runs.train

    class Stop(Exception):
        pass

    def stopping(*arguments, **options):
        if next(stops, False):
            raise Stop
        return train(*arguments, **options)

    monkeypatch.setattr(many_runs, "train", stopping)
    with pytest.raises(Stop):
        run_search(plan(), tmp_path / "stopped", 4, console=quiet)
    resumed = run_search(plan(), tmp_path / "stopped", 4, console=quiet)
    assert [(t.number, t.settings, t.value) for t in resumed] == [
        (t.number, t.settings, t.value) for t in whole
    ]
    assert run_search(plan(), tmp_path / "stopped", 4, console=quiet) == resumed  # all trials are finished
    assert len(run_search(plan(), tmp_path / "stopped", 5, console=quiet)) == 5
    with pytest.raises(DmlError, match=r"holds a different search:\n  seed: 0 there, 1 here"):
        run_search(plan(seed=1), tmp_path / "stopped", 4, console=quiet)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_search_killed_while_it_writes_a_line_of_its_journal_resumes(plan, quiet, tmp_path, cut):
    whole = run_search(plan(), tmp_path / "out", 2, console=quiet)
    journal = tmp_path / "out" / "journal.log"
    content = journal.read_bytes()
    journal.write_bytes(content[:-cut])
    (tmp_path / "out" / "journal.log.lock").touch()  # of Optuna's own, which nobody would remove
    resumed = run_search(plan(), tmp_path / "out", 2, console=quiet)
    assert [(t.settings, t.value) for t in resumed] == [(t.settings, t.value) for t in whole]
    assert len(journal.read_bytes().splitlines()) >= len(content.splitlines())
    journal.write_bytes(b"no line of JSON\n" + content)
    with pytest.raises(DmlError, match=r"journal\.log is corrupt"):
        run_search(plan(), tmp_path / "out", 2, console=quiet)


def test_the_sampler_s_options_and_optuna_s_version_are_recorded(plan, tmp_path, quiet):
    run_search(plan(), tmp_path / "search", 1, console=quiet)
    path = tmp_path / "search" / "search.json"
    saved = json.loads(path.read_text())
    assert saved["optuna"] == optuna.__version__
    assert saved["sampler"] == {"name": "TPESampler", **SAMPLER}
    path.write_text(json.dumps({**saved, "optuna": "4.1.0"}))
    console = Console(file=io.StringIO(), width=200)
    run_search(plan(), tmp_path / "search", 1, console=console)
    assert f"optuna 4.1.0 began this search, and {optuna.__version__} resumes it" in console.file.getvalue()
    path.write_text(json.dumps({**saved, "sampler": {**saved["sampler"], "multivariate": False}}))
    with pytest.raises(DmlError, match=r"sampler\.multivariate: False there, True here"):
        run_search(plan(), tmp_path / "search", 1, console=quiet)


@pytest.mark.skipif(optuna.__version__ < "5", reason="before 5.0 the sampler's other options have defaults")
def test_no_default_of_the_sampler_that_changed_is_left_to_optuna():
    """Of optuna 4.2 to 5.0: what isn't pinned is deprecated there, and None."""
    parameters = inspect.signature(optuna.samplers.TPESampler).parameters
    left = {name for name, parameter in parameters.items() if parameter.default is not None} - SAMPLER.keys()
    assert left == set()


def test_a_folder_with_other_files_is_refused_unchanged(plan, tmp_path, quiet):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(DmlError, match="holds other files; nothing was touched"):
        run_search(plan(), tmp_path, 1, console=quiet)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(DmlError, match="can't make the folder"):
        run_search(plan(), tmp_path / "thesis.tex", 1, console=quiet)


def test_a_folder_with_the_probe_of_a_cluster_is_new(plan, tmp_path, quiet):
    with expect([], tmp_path):
        assert run_search(plan(), tmp_path, 1, console=quiet)


def test_a_failed_trial_counts_and_is_not_the_best(plan, tmp_path, quiet):
    batches = Choice((4, 100))  # more classes than the data set has
    trials = run_search(
        plan(space={"sampler.classes_per_batch": batches}), tmp_path / "out", 6, console=quiet
    )
    failed = [trial for trial in trials if trial.value is None]
    assert failed
    assert {trial.settings["sampler.classes_per_batch"] for trial in failed} == {100}
    assert best_trial(trials).settings == {"sampler.classes_per_batch": 4}
    with pytest.raises(DmlError, match="all 1 trials failed"):
        best_trial(failed[:1])


def test_the_command_states_its_budget_and_writes_the_best_recipe(plan, tiny_registry, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps(plan().document))
    out = tmp_path / "out"
    arguments = [
        "tune",
        str(path),
        "--range",
        "optimizer.lr=1e-3:1e-1:log",
        "--trials",
        "3",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(main, arguments, obj=tiny_registry)
    assert result.exit_code == 0, result.output
    assert "Budget: 3 trials (0 failed), 3 trainings of at most 2 steps" in result.output
    assert "The test classes were neither embedded nor measured" in result.output
    found = json.loads((out / "tuning.json").read_text())
    winner = found["trials"][found["best"]]
    assert winner["value"] == max(trial["value"] for trial in found["trials"])
    chosen = load_recipe(out / "best.toml", [], tiny_registry)
    assert chosen.optimizer.lr == winner["settings"]["optimizer.lr"]
    assert chosen.evaluation.test
    result = CliRunner().invoke(main, [*arguments, "--choice", "optimizer.lr=[1.0, 2.0]"], obj=tiny_registry)
    assert result.exit_code == 2
    assert "'optimizer.lr' varies twice" in result.stderr
