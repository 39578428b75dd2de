"""`dml tune --join`: processes that work on one search at the same time, in a journal or a database."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from dml_core import DmlError
from dml_train.files import lock_folder
from dml_train.run_folder import RunFolder
from dml_train.studies.tuning import searching
from dml_train.studies.tuning.journal import Journal
from dml_train.studies.tuning.search import SettingsSearch
from dml_train.studies.tuning.searching import list_trainings, run_search
from dml_train.studies.tuning.space import Range

pytest.importorskip("optuna", reason="the search needs the extra dml-train[tune]")


@pytest.fixture
def plan(tiny_document, tiny_registry):
    document = tiny_document(
        training={"steps": 2, "device": "cpu", "seed": 3},
        validation={"class_fraction": 0.34, "metric": "recall@1"},
        evaluation={"every": 2, "unit": "step"},
    )
    return SettingsSearch(document, {"optimizer.lr": Range(1e-3, 1e-1, log=True)}, None, 0, tiny_registry)


@pytest.fixture
def faked(monkeypatch):
    """Replace trainings by a function of the settings; return the folders of those done."""
    done: list[str] = []
    together = threading.Barrier(2, timeout=20)

    def train(jobs, **options):
        with suppress(threading.BrokenBarrierError):
            together.wait(0.05)  # so that trials of two machines overlap
        done.extend(job.folder.parent.name for job in jobs)
        return [FakeOutcome(job.recipe.optimizer.lr) for job in jobs]

    class FakeOutcome:
        fault = None

        def __init__(self, lr):
            self.lr = lr

        def metrics(self):
            return {"recall@1": 1.0 - abs(self.lr - 0.01)}

    monkeypatch.setattr(searching, "run_all", train)
    return done


@pytest.mark.parametrize("database", [False, True], ids=["journal", "database"])
def test_machines_share_the_trials_and_do_each_once(plan, faked, tmp_path, quiet, database):
    out = tmp_path / "out"
    storage = f"sqlite:///{tmp_path}/trials.db" if database else None

    def machine(_):
        return run_search(plan, out, 13, console=quiet, join=True, storage=storage)

    # One begins alone: sqlite makes its tables then, which two can't at a time.
    run_search(plan, out, 1, console=quiet, join=True, storage=storage)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(machine, range(2)))
    assert sorted(faked) == [f"{number:04}" for number in range(13)]
    last = max(results, key=len)
    assert [trial.number for trial in last] == list(range(13))
    assert len({trial.settings["optimizer.lr"] for trial in last}) == 13
    assert json.loads((out / "search.json").read_text())["joint"] == ("database" if database else "journal")
    alone = run_search(plan, tmp_path / "alone", 10, console=quiet)
    assert [t.settings for t in alone] == [t.settings for t in last[:10]], (
        "random trials depend on the number alone"
    )


def test_a_trial_whose_machine_died_is_taken_over_and_one_that_trains_is_left(plan, faked, tmp_path, quiet):
    out = tmp_path / "out"
    with searching.open_trials(plan, out, quiet, join=True) as store:
        assert store.ask(3)
        assert store.ask(3)
    (out / "trials" / "0000").mkdir(parents=True)
    with lock_folder(out / "trials" / "0000", "training trial 0"):
        assert [trial.number for trial in run_search(plan, out, 3, console=quiet, join=True)] == [1, 2]
    assert faked == ["0001", "0002"]
    assert [trial.number for trial in run_search(plan, out, 3, console=quiet, join=True)] == [0, 1, 2]


def test_a_joint_search_and_one_of_a_single_process_are_different(plan, faked, tmp_path, quiet):
    run_search(plan, tmp_path / "joint", 1, console=quiet, join=True)
    with pytest.raises(DmlError, match="holds a different search"):
        run_search(plan, tmp_path / "joint", 1, console=quiet)
    with pytest.raises(DmlError, match="a storage was given for a search of one process"):
        run_search(plan, tmp_path / "other", 1, console=quiet, storage="sqlite://")
    with pytest.raises(DmlError, match=r"can't open the database of the search") as refused:
        run_search(
            plan, tmp_path / "other", 1, console=quiet, join=True, storage="nonsense://me:secret@host/db"
        )
    assert "secret" not in str(refused.value)


def test_processes_append_to_one_journal_and_a_cut_line_is_dropped(tmp_path):
    path = tmp_path / "journal.log"
    first, second = Journal(path), Journal(path)
    first.append_logs([{"a": 1}])
    path.write_bytes(path.read_bytes() + b'{"cut":')
    assert second.read_logs(0) == [{"a": 1}]
    second.append_logs([{"b": 2}, {"c": 3}])
    first.append_logs([{"d": 4}])
    assert first.read_logs(1) == second.read_logs(1) == [{"b": 2}, {"c": 3}, {"d": 4}]
    assert Journal(path).read_logs(0) == first.read_logs(0)


def test_trials_at_random_are_listed_at_once_and_later_ones_in_turn(
    plan, faked, tmp_path, quiet, monkeypatch
):
    whole = run_search(plan, tmp_path / "whole", 12, console=quiet)
    out = tmp_path / "listed"

    def numbers():
        return [job.folder.parent.name for job in list_trainings(plan, out, 12, quiet)]

    assert numbers() == [f"{number:04}" for number in range(10)]
    monkeypatch.setattr(searching, "Outcome", lambda job: searching.run_all([job])[0])

    def finish(names):
        for name in names:
            run = RunFolder(out / "trials" / name / "fold-0")
            run.path.mkdir(parents=True)
            run.evaluation.touch()
            run.write_manifest()

    finish(numbers()[:3])
    assert numbers() == [f"{number:04}" for number in range(3, 10)]
    for number in range(3, 12):
        finish([f"{number:04}"])
    assert numbers() == []
    monkeypatch.undo()
    monkeypatch.setattr(searching, "_seconds", lambda *arguments: 0.0)
    listed = run_search(plan, out, 12, console=quiet)
    assert [(t.number, t.settings, t.value) for t in listed] == [
        (t.number, t.settings, t.value) for t in whole
    ]
