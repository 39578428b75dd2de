"""Runs in processes that are killed: neither interruptions nor the number of ranks change their results."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from train_support import tiny_run
from train_support.run_traces import check_same_bits, losses

from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

PATIENCE = (
    600  # seconds after which a process counts as hanging; on an idle machine, each test takes less than ten
)


class Forked:
    """A run in a new process, forked from one that has imported everything: it starts at once."""

    def __init__(self, arguments, errors):
        context = multiprocessing.get_context("forkserver")
        self.errors = errors
        self.process = context.Process(target=tiny_run.with_errors_in, args=(str(errors), arguments))
        self.process.start()

    returncode = property(lambda self: self.process.exitcode)

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()

    def communicate(self, timeout):
        self.process.join(timeout)
        return None, self.errors.read_text()


@pytest.fixture
def start(tmp_path, tiny_document):
    """Start the tiny run in one process or several, without batch statistics or random draws.

    With ``forked=False``, one process is a new program, so that the end of its loaders can be seen, too.
    """

    def start(name, *flags, out=None, ranks=1, restarts=0, forked=True, **tables):
        tables.setdefault("backbone", {"dropout": 0.0, "norm": False})
        document = tmp_path / f"{name}.json"
        document.write_text(json.dumps(tiny_document(**tables)))
        arguments = [str(document), str(tmp_path / (out or name)), *flags]
        if forked and ranks == 1:
            return Forked(arguments, tmp_path / f"{name}.errors")
        return subprocess.Popen(
            tiny_run.command(*arguments, ranks=ranks, restarts=restarts),
            cwd=tiny_run.FOLDER,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    return start


def finish(process, code=0):
    try:
        _, errors = process.communicate(
            timeout=PATIENCE
        )  # returns when the process and all its loaders have ended
    finally:
        process.kill()
    assert process.returncode == code, errors
    return errors


@pytest.mark.slow
def test_a_run_killed_twice_ends_like_an_uninterrupted_one(start, tmp_path):
    tables = {
        "training": {"steps": 300, "workers": 1},
        "backbone": {"dropout": 0.2, "norm": True},
        "checkpoints": {"every": 20},
    }
    # Without loader processes, which change nothing.
    whole = start("whole", **{**tables, "training": {"steps": 300}})
    finish(start("cut", "--die-at", "151", **tables), -signal.SIGKILL)
    assert RunFolder(tmp_path / "cut").metrics.exists()
    process = start("cut", "--resume", forked=False, **tables)  # killed from outside, at any point
    metrics = RunFolder(tmp_path / "cut").metrics
    before = metrics.stat().st_mtime_ns
    deadline = time.monotonic() + PATIENCE
    while metrics.stat().st_mtime_ns == before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    finish(start("cut", "--resume", **tables))
    finish(whole)
    check_same_bits(RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_saves_first_and_reports_its_step(start, tmp_path, number):
    process = start("run", training={"steps": 10**6}, checkpoints={"every": 0})
    metrics = RunFolder(tmp_path / "run").metrics
    deadline = time.monotonic() + PATIENCE
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    errors = finish(process, 1)  # without the dml command, the exception shows
    assert f"RunInterrupted: stopped by {number.name} after step" in errors
    saved = checkpoint.newest_intact(RunFolder(tmp_path / "run").checkpoints)
    assert json.loads(metrics.read_text().splitlines()[-1])["step"] == saved.step > 0


TABLES = {
    "training": {"steps": 40, "gradient_clip": 1.0},
    "schedule": {"model.backbone_trains": {"kind": "step", "values": [0, 1], "milestones": [10]}},
}


@pytest.mark.slow
def test_two_ranks_match_one_process_after_a_death_and_when_one_process_resumes_them(start, tmp_path):
    one = start("one", **TABLES)
    # One restart sufficed on a machine with ten times more work than cores; the second is a reserve.
    finish(start("two", "--die-at", "22", ranks=2, restarts=2, **TABLES))
    finish(one)
    # One process resumes the two ranks' checkpoint of step 36, three images at a time.
    alone = RunFolder(tmp_path / "alone")
    shutil.copytree(tmp_path / "two", alone.path)
    alone.evaluation.unlink()
    shutil.rmtree(alone.checkpoints / "step-00000040")
    parts = {**TABLES, "training": {**TABLES["training"], "micro_batch": 3}}
    finish(start("alone", "--resume", "--force", **parts))

    expected = losses(RunFolder(tmp_path / "one"))
    assert len(expected) == 40
    assert all(map(math.isfinite, expected))
    for name in ("two", "alone"):
        assert losses(RunFolder(tmp_path / name)) == pytest.approx(
            expected, rel=1e-5
        )  # sums in another order, 40 steps long
        embeddings = (np.load(RunFolder(tmp_path / folder).embeddings()) for folder in ("one", name))
        np.testing.assert_allclose(*embeddings, rtol=1e-3, atol=1e-4)  # as above, through the whole network


@pytest.mark.slow
def test_a_dead_rank_ends_the_run(start, tmp_path):
    errors = finish(start("run", "--die-at", "10", ranks=2), 1)
    assert "Signal 9 (SIGKILL)" in errors
    assert checkpoint.newest_intact(tmp_path / "run" / "checkpoints").step in (8, 12)
