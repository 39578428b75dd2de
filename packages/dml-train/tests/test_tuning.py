"""The search for settings: space, data, resuming after an interruption, and a search that uses
multiple machines.
"""

from __future__ import annotations

import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest
import tomli_w
from click.testing import CliRunner
from train_support.tiny_world import TinyDataset

from dml_core import DmlError, InvalidOption
from dml_train.cli import main
from dml_train.cluster.workers import expect
from dml_train.files import WriteRefused, lock_folder
from dml_train.recipe.loading import load_recipe
from dml_train.run_folder import RunFolder
from dml_train.studies import runs as single_runs
from dml_train.studies.tuning import run as tuning
from dml_train.studies.tuning.run import list_trainings, run_search
from dml_train.studies.tuning.search import (
    Choice,
    Range,
    SettingsSearch,
    best_trial,
    read_choice,
    read_range,
    read_space,
)
from dml_train.studies.tuning.trials import TrialStore

pytest.importorskip("optuna", reason="the search needs the extra dml-train[tune]")

SPACE = {"optimizer.lr": Range(1e-3, 1e-1, log=True), "loss.scale": Choice((2.0, 4.0, 8.0))}


@pytest.fixture
def plan(tiny_document, registry):
    def plan(space=SPACE, folds=None, seed=0, **tables):
        tables.setdefault("validation", {"class_fraction": 0.34, "metric": "recall@1"})
        tables.setdefault("evaluation", {"every": 2, "unit": "step"})
        document = tiny_document(training={"steps": 2, "device": "cpu", "seed": 3}, **tables)
        return SettingsSearch(document, space, folds, seed, registry)

    return plan


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.lr=1e-4:1e-2:log", ("optimizer.lr", Range(1e-4, 1e-2, log=True))),
        ("loss.margin=0:0.5", ("loss.margin", Range(0, 0.5))),
        ("sampler.images_per_class=2:5", ("sampler.images_per_class", Range(2, 5))),
    ],
)
def test_ranges_and_choices_are_read(text, expected):
    assert read_range(text) == expected
    assert expected[1].is_integer == isinstance(expected[1].high, int)
    assert read_choice('loss.name=["tiny", "other"]') == ("loss.name", Choice(("tiny", "other")))


RANGES = ["optimizer.lr", "=1:2", "a=1", "a=1:2:3", "a=1:two", "a=2:1", "a=0:1:log", "a=nan:1"]
CHOICES = ["a=2", "a=[2", "a=[2]", "a=[2, 2]", "a=[[1], [2]]", "=[1, 2]"]


@pytest.mark.parametrize(
    ("read", "text"),
    [*((read_range, text) for text in RANGES), *((read_choice, text) for text in CHOICES)],
)
def test_an_invalid_range_or_choice_is_refused(read, text):
    with pytest.raises(InvalidOption, match=r"^(range|choice) '"):
        read(text)


def test_a_space_is_read_from_a_file_and_its_mistakes_are_named(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        '["optimizer.lr"]\nlow = 1e-3\nhigh = 0.1\nlog = true\n\n["loss.scale"]\nchoices = [2.0, '
        "4.0, 8.0]\n"
    )
    assert read_space(path) == SPACE
    path.write_text('["optimizer.lr"]\nlow = 1e-3\n')
    message = r"space.toml: \['optimizer.lr'\]: .* expected numbers low and high"
    with pytest.raises(InvalidOption, match=message):
        read_space(path)
    with pytest.raises(DmlError, match="can't read the search space"):
        read_space(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation": {}}, "doesn't hold out classes.*give a number of folds"),
        (
            {"validation": {"on_test": True, "metric": "recall@1"}},
            "validation.on_test is true in the recipe; a search selects settings on held-out",
        ),
        (
            {"space": {"optimizer.lr": Range(-1.0, 1.0)}},
            "with optimizer.lr = -1.0: .*greater than or equal to 0",
        ),
        ({"space": {"loss.slope": Range(1, 2)}}, "with loss.slope = 1: .*no option 'slope'"),
        ({"space": {}}, "the search space is empty"),
    ],
)
def test_a_search_that_does_not_suit_its_recipe_is_refused_before_anything_runs(
    plan, changes, message
):
    with pytest.raises(DmlError, match=message):
        plan(**changes)


def test_a_trials_value_is_its_folds_mean_without_the_test_split(
    plan, tmp_path, quiet, monkeypatch
):
    make = TinyDataset.__init__

    @functools.wraps(make)
    def unseen(self, *arguments, **options):
        make(self, *arguments, **options)

        def refuse(indices, seeds=None):
            raise AssertionError("the test split was loaded")

        self.test.load = refuse

    monkeypatch.setattr(TinyDataset, "__init__", unseen)
    trials = run_search(
        plan(folds=3, validation={"metric": "recall@1"}), tmp_path / "out", 2, quiet
    )
    assert len(trials) == 2
    for trial in trials:
        folds = [
            tmp_path / f"out/trials/{trial.number:04}/fold-{n}/evaluation.json" for n in range(3)
        ]
        measured = [json.loads(path.read_text()) for path in folds]
        assert {figures["split"] for figures in measured} == {"validation"}
        assert trial.value == pytest.approx(sum(figures["recall@1"] for figures in measured) / 3)


def test_a_stopped_search_resumes_to_the_same_trials(plan, tmp_path, quiet, monkeypatch):
    whole = run_search(plan(), tmp_path / "whole", 4, quiet)
    stops = iter([False, True])
    train = single_runs.train

    class Stop(Exception):
        pass

    def stopping(*arguments, **options):
        if next(stops, False):
            raise Stop
        return train(*arguments, **options)

    monkeypatch.setattr(single_runs, "train", stopping)
    with pytest.raises(Stop):
        run_search(plan(), tmp_path / "stopped", 4, quiet)
    resumed = run_search(plan(), tmp_path / "stopped", 4, quiet)
    assert outcomes(resumed) == outcomes(whole)
    assert run_search(plan(), tmp_path / "stopped", 4, quiet) == resumed  # all trials are finished
    assert len(run_search(plan(), tmp_path / "stopped", 5, quiet)) == 5
    with pytest.raises(DmlError, match=r"contains a different search:\n  seed: 0 there, 1 here"):
        run_search(plan(seed=1), tmp_path / "stopped", 4, quiet)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_search_killed_while_it_writes_a_line_of_its_journal_resumes(plan, quiet, tmp_path, cut):
    whole = run_search(plan(), tmp_path / "out", 2, quiet)
    journal = tmp_path / "out" / "journal.log"
    content = journal.read_bytes()
    journal.write_bytes(content[:-cut])
    (tmp_path / "out" / "journal.log.lock").touch()  # Optuna would wait for this lock
    resumed = run_search(plan(), tmp_path / "out", 2, quiet)
    assert outcomes(resumed) == outcomes(whole)
    assert len(journal.read_bytes().splitlines()) >= len(content.splitlines())
    journal.write_bytes(b"no line of JSON\n" + content)
    with pytest.raises(DmlError, match=r"journal\.log is corrupt"):
        run_search(plan(), tmp_path / "out", 2, quiet)


def test_a_folder_with_other_files_is_refused_unchanged(plan, registry, tmp_path, quiet):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(DmlError, match="contains other files; nothing was written"):
        run_search(plan(), tmp_path, 1, quiet)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(DmlError, match="can't make the folder"):
        run_search(plan(), tmp_path / "thesis.tex", 1, quiet)
    (tmp_path / "new").mkdir()
    with expect(registry, tmp_path / "new"):  # a folder with only a cluster's probe counts as new
        assert run_search(plan(), tmp_path / "new", 1, quiet)


def test_a_failed_trial_counts_and_is_not_the_best(plan, tmp_path, quiet):
    batches = Choice((4, 100))  # more classes than in the data set
    trials = run_search(
        plan(space={"sampler.classes_per_batch": batches}), tmp_path / "out", 6, quiet
    )
    failed = [trial for trial in trials if trial.value is None]
    assert failed
    assert {trial.settings["sampler.classes_per_batch"] for trial in failed} == {100}
    assert best_trial(trials).settings == {"sampler.classes_per_batch": 4}
    with pytest.raises(DmlError, match="all 1 trials failed"):
        best_trial(failed[:1])


def test_the_command_states_its_budget_and_writes_the_best_recipe(plan, registry, tmp_path):
    path, out = tmp_path / "tiny.toml", tmp_path / "out"
    path.write_text(tomli_w.dumps(plan().document))
    searched = ["--range", "optimizer.lr=1e-3:1e-1:log", "--trials", "3"]
    arguments = ["tune", str(path), *searched, "--out", str(out)]
    result = CliRunner().invoke(main, arguments, obj=registry)
    assert result.exit_code == 0, result.output
    assert "Budget: 3 trials (0 failed), 3 trainings of at most 2 steps" in result.output
    assert "The test classes were neither embedded nor measured" in result.output
    found = json.loads((out / "tuning.json").read_text())
    winner = found["trials"][found["best"]]
    assert winner["value"] == max(trial["value"] for trial in found["trials"])
    chosen = load_recipe(out / "best.toml", [], registry)
    assert chosen.optimizer.lr == winner["settings"]["optimizer.lr"]
    assert chosen.evaluation.test
    result = CliRunner().invoke(
        main, [*arguments, "--choice", "optimizer.lr=[1.0, 2.0]"], obj=registry
    )
    assert result.exit_code == 2
    assert "'optimizer.lr' varies twice" in result.stderr


@pytest.fixture
def faked(monkeypatch):
    """Replace trainings by a function of the settings; return the folders of finished trainings."""
    done: list[str] = []
    together = threading.Barrier(2, timeout=20)

    def finish(job):
        value = 1.0 - abs(job.recipe.optimizer.lr - 0.01)
        return SimpleNamespace(fault=None, metrics=lambda: {"recall@1": value}, seconds=lambda: 0.0)

    def train(jobs, **options):
        with suppress(threading.BrokenBarrierError):
            together.wait(0.05)  # so that trials of both machines overlap
        done.extend(job.folder.parent.name for job in jobs)
        return [finish(job) for job in jobs]

    monkeypatch.setattr(tuning, "run_all", train)
    monkeypatch.setattr(tuning, "Outcome", finish)
    return done


def outcomes(trials):
    return [(trial.number, trial.settings, trial.value) for trial in trials]


def test_machines_share_the_trials_and_do_each_once(plan, faked, tmp_path, quiet):
    out = tmp_path / "out"

    def machine(_):
        return run_search(plan(), out, 13, quiet)

    with ThreadPoolExecutor(2) as pool:  # both begin the search
        results = list(pool.map(machine, range(2)))
    assert sorted(faked) == [f"{number:04}" for number in range(13)]
    last = max(results, key=len)
    assert [trial.number for trial in last] == list(range(13))
    assert len({trial.settings["optimizer.lr"] for trial in last}) == 13
    alone = run_search(plan(), tmp_path / "alone", 10, quiet)
    assert outcomes(alone) == outcomes(last[:10]), (
        "random trials must only depend on the trial's number"
    )


def test_a_trial_whose_machine_died_is_taken_over_and_one_that_trains_is_left(
    plan, faked, tmp_path, quiet
):
    out = tmp_path / "out"
    store = TrialStore(plan(), out)
    assert store.ask(3)
    assert store.ask(3)
    (out / "trials" / "0000").mkdir(parents=True)
    with lock_folder(out / "trials" / "0000", "training trial 0"):
        assert [trial.number for trial in run_search(plan(), out, 3, quiet)] == [1, 2]
    assert faked == ["0001", "0002"]
    assert [trial.number for trial in run_search(plan(), out, 3, quiet)] == [0, 1, 2]


def test_a_full_disk_keeps_the_trials_and_the_search_resumes(
    plan, faked, tmp_path, quiet, small_files
):
    out = tmp_path / "out"
    run_search(plan(), out, 2, quiet)
    size = (out / "journal.log").stat().st_size
    with small_files(size + 300), pytest.raises(WriteRefused, match="finished trials are kept"):
        run_search(plan(), out, 4, quiet)
    assert (out / "journal.log").stat().st_size == size + 300
    resumed = run_search(plan(), out, 4, quiet)
    assert outcomes(resumed[:2]) == outcomes(run_search(plan(), tmp_path / "whole", 2, quiet))
    assert len(resumed) == 4


def test_trials_at_random_are_listed_at_once_and_later_ones_in_turn(plan, faked, tmp_path, quiet):
    whole = run_search(plan(), tmp_path / "whole", 12, quiet)
    out = tmp_path / "listed"

    def numbers():
        return [job.folder.parent.name for job in list_trainings(plan(), out, 12)]

    def finish(names):
        for name in names:
            run = RunFolder(out / "trials" / name / "fold-0")
            run.path.mkdir(parents=True)
            run.evaluation.touch()
            run.write_manifest()

    assert numbers() == [f"{number:04}" for number in range(10)]
    finish(numbers()[:3])
    assert numbers() == [f"{number:04}" for number in range(3, 10)]
    for number in range(3, 12):
        finish([f"{number:04}"])
    assert numbers() == []
    assert outcomes(run_search(plan(), out, 12, quiet)) == outcomes(whole)
