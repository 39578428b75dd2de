"""`run_all(executor=...)`: any executor should give the bits of a single process, even if a worker
dies.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from train_support.study_runs import glyph_jobs, result_files

from dml_core import registry
from dml_train.cluster import workers
from dml_train.cluster.workers import UnfitWorker
from dml_train.files import WriteRefused
from dml_train.run_folder import RunFolder
from dml_train.studies import runs
from dml_train.studies.runs import Job, run_all

QUIET = Console(quiet=True)


def jobs(folder: Path, count: int = 2, *extra: str) -> list[Job]:
    return glyph_jobs(
        folder, count, "training.steps=2", "checkpoints.every=1", 'checkpoints.unit="step"', *extra
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """Train a pair of runs in a single process."""
    folder = tmp_path_factory.mktemp("alone")
    run_all(jobs(folder), registry=registry(), console=QUIET)
    return folder


class Call:
    """A task that runs in this process when `result` is called."""

    def __init__(self, function, arguments):
        self.run = lambda: function(*arguments)
        self.cancelled = False

    def done(self) -> bool:
        return True

    def result(self):
        return self.run()

    def cancel(self) -> None:
        self.cancelled = True


class Inline:
    """An executor in this process: `deaths` workers of a job die, and `changes` replace fields of
    the requirements.
    """

    def __init__(self, deaths: dict[str, int] | None = None, **changes):
        self.deaths, self.changes, self.calls = dict(deaths or {}), changes, []

    def submit(self, function, job, expected):
        self.calls.append(Call(function, (job, replace(expected, **self.changes))))
        if self.deaths.get(job.name, 0) > 0:
            self.deaths[job.name] -= 1
            self.calls[-1].run = self.die
        return self.calls[-1]

    @staticmethod
    def die():
        raise ConnectionError("the node 10.0.0.7 is gone\nand more")


def test_an_executor_gives_the_bits_of_one_process(alone, tmp_path):
    ended = []
    outcomes = run_all(
        jobs(tmp_path), executor=Inline(), registry=registry(), console=QUIET, on_end=ended.append
    )
    assert result_files(tmp_path) == result_files(alone)
    assert [(o.job.name, o.fault) for o in outcomes] == [("seed 0", None), ("seed 1", None)]
    assert ended == outcomes
    assert all(outcome.seconds() for outcome in outcomes)
    again = Inline()
    assert run_all(jobs(tmp_path), executor=again, registry=registry(), console=QUIET) == outcomes
    assert again.calls == []  # a worker should not be used when runs are finished
    other = jobs(tmp_path, 1, "loss.temperature=0.3")
    (outcome,) = run_all(other, executor=again, registry=registry(), console=QUIET)
    assert "the recipe differs" in str(outcome.fault)


def test_a_run_whose_worker_dies_is_submitted_again_and_costs_the_others_nothing(alone, tmp_path):
    shown = Console(file=StringIO(), width=200)
    executor = Inline({"seed 0": 2})
    run_all(jobs(tmp_path), executor=executor, registry=registry(), console=shown)
    assert result_files(tmp_path) == result_files(alone)
    assert len(executor.calls) == 4
    line = (
        "seed 0: its worker ended (ConnectionError: the node 10.0.0.7 is gone); it resumes "
        "elsewhere\n"
    )
    assert shown.file.getvalue() == 2 * line


def test_a_run_that_kills_every_worker_fails_and_the_others_finish(alone, tmp_path):
    first, second = run_all(
        jobs(tmp_path), executor=Inline({"seed 0": 99}), registry=registry(), console=QUIET
    )
    assert first.fault is not None
    assert "3 workers ended without a checkpoint in between" in first.fault
    assert second.fault is None
    assert result_files(tmp_path / "1") == result_files(alone / "1")


def test_a_run_with_progress_may_lose_any_number_of_workers(tmp_path, monkeypatch):
    (run,) = jobs(tmp_path, 1)
    executor = Inline({"seed 0": 7})

    def die():
        (RunFolder(run.folder).checkpoints / f"step-{len(executor.calls)}").mkdir(parents=True)
        raise ConnectionError

    executor.die = die
    assert executor.deaths == {"seed 0": 7}
    monkeypatch.setattr(runs, "train_there", lambda job, expected: runs._Result())
    (outcome,) = run_all([run], executor=executor, registry=registry(), console=QUIET)
    assert (outcome.fault, len(executor.calls)) == (None, 8)


def test_unfit_workers_are_named_before_they_work(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS_TO_APPEAR", 0.0)

    def refused(executor):
        with pytest.raises(UnfitWorker) as error:
            run_all(jobs(tmp_path / "out"), executor=executor, registry=registry(), console=QUIET)
        assert [path.name for path in (tmp_path / "out").iterdir()] == []
        return str(error.value)

    host = os.uname().nodename
    other = Inline(versions={"dml-train": "0.0.1"})
    assert f"a worker on {host} has dml-train" in refused(other)
    assert "expected 0.0.1, as here. Install identical versions" in refused(other)
    assert other.calls[1].cancelled
    assert f"a worker on {host} lacks no-such-package" in refused(
        Inline(versions={"no-such-package": "1"})
    )
    unshared = refused(Inline(probe=tmp_path / "elsewhere" / ".probe"))
    assert f"doesn't see {tmp_path / 'elsewhere'}, where this command writes" in unshared
    bare = Inline({"seed 0": 1})
    bare.die = lambda: __import__("no_such_package")
    assert "a worker lacks the package no_such_package" in refused(bare)


def test_a_full_disk_of_a_worker_ends_the_study(tmp_path, monkeypatch):
    full = runs._Result(refusal=WriteRefused("no space left"))
    monkeypatch.setattr(runs, "train_there", lambda job, expected: full)
    with pytest.raises(WriteRefused, match="no space left"):
        run_all(jobs(tmp_path), executor=Inline(), registry=registry(), console=QUIET)


def test_threads_train_one_run_at_a_time(alone, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        run_all(jobs(tmp_path / "one"), executor=pool, registry=registry(), console=QUIET)
    assert result_files(tmp_path / "one") == result_files(alone)
    with (
        runs._training,
        ThreadPoolExecutor(1) as pool,
        pytest.raises(UnfitWorker, match="two runs at a time"),
    ):
        run_all(jobs(tmp_path / "two"), executor=pool, registry=registry(), console=QUIET)


def test_a_locked_run_is_waited_for(alone, tmp_path):
    """A process can hold the lock for a moment after its node is lost."""
    (job, _) = jobs(tmp_path)
    job.folder.mkdir()
    locked, lock = threading.Event(), RunFolder(job.folder).lock()

    def hold():
        with lock:
            locked.set()
            time.sleep(0.5)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    run_all([job], executor=Inline(), registry=registry(), console=QUIET)
    thread.join()
    assert result_files(tmp_path / "0") == result_files(alone / "0")


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(),
    reason="looks for the worker in /proc",
)
def test_submitit_resumes_a_killed_run(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit", reason="SLURM's executor")
    (run,) = jobs(tmp_path / "killed", 1, "training.steps=60", "checkpoints.every=10")
    # By default, submitit waits 30 s for a result that may still appear.
    monkeypatch.setattr(submitit.core.core.Job, "_results_timeout_s", 1)
    executor = submitit.LocalExecutor(folder=tmp_path / "log")
    shown, submitted = Console(file=StringIO(), width=200), []
    submit = executor.submit

    def record(*arguments):
        submitted.append(submit(*arguments))
        return submitted[-1]

    executor.submit = record

    def kill():
        while not list(run.folder.glob("checkpoints/*/state.pt")):
            time.sleep(0.02)
        controller = submitted[0].job_id
        (worker,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    (outcome,) = run_all([run], executor=executor, registry=registry(), console=shown)
    killer.join()
    assert outcome.fault is None
    assert "seed 0: its worker ended (UncompletedJobError" in shown.file.getvalue()
    assert len(submitted) == 2
    whole = jobs(tmp_path / "whole", 1, "training.steps=60", "checkpoints.every=10")
    run_all(whole, registry=registry(), console=QUIET)
    assert result_files(tmp_path / "killed") == result_files(tmp_path / "whole")
