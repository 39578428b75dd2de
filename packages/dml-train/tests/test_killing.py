"""Runs in processes that are killed: neither interruptions nor the number of ranks may change the
results.
"""

from __future__ import annotations

import json
import math
import os
import random
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

# Seconds after which a process counts as hanging.
PATIENCE = 600


@pytest.fixture
def start(tmp_path, tiny_document):
    """Start the tiny run, as the leader of a session. By default, batch statistics and random draws
    are not used.
    """

    def start(name, *flags, ranks=1, restarts=0, **tables):
        tables.setdefault("backbone", {"dropout": 0.0, "norm": False})
        document = tmp_path / f"{name}.json"
        document.write_text(json.dumps(tiny_document(**tables)))
        return subprocess.Popen(
            tiny_run.command(document, tmp_path / name, *flags, ranks=ranks, restarts=restarts),
            cwd=tiny_run.FOLDER,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    return start


def finish(process, code=0):
    try:
        # This returns when the process and the loaders have ended.
        _, errors = process.communicate(timeout=PATIENCE)
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
    # Loader processes must not change the result, so use none here.
    whole = start("whole", **{**tables, "training": {"steps": 300}})
    finish(start("cut", "--die-at", "151", **tables), -signal.SIGKILL)
    assert RunFolder(tmp_path / "cut").metrics.exists()
    process = start("cut", "--resume", **tables)  # killed from outside, any time
    metrics = RunFolder(tmp_path / "cut").metrics
    before = metrics.stat().st_mtime_ns
    deadline = time.monotonic() + PATIENCE
    while (
        metrics.stat().st_mtime_ns == before
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.001)
    process.kill()
    process.communicate()
    finish(start("cut", "--resume", **tables))
    finish(whole)
    check_same_bits(RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut"))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_run_stopped_by_a_signal_saves_first_and_reports_its_step(start, tmp_path, number):
    process = start("run", training={"steps": 10**6}, checkpoints={"every": 0})
    metrics = RunFolder(tmp_path / "run").metrics
    deadline = time.monotonic() + PATIENCE
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    errors = finish(process, 1)  # the dml command is not used, so the exception shows
    assert f"RunInterrupted: stopped by {number.name} after step" in errors
    saved = checkpoint.newest_intact(RunFolder(tmp_path / "run").checkpoints)
    assert json.loads(metrics.read_text().splitlines()[-1])["step"] == saved.step > 0


TABLES = {
    "training": {"steps": 40, "gradient_clip": 1.0},
    "schedule": {"model.backbone_trains": {"kind": "step", "values": [0, 1], "milestones": [10]}},
}


@pytest.mark.slow
def test_two_ranks_match_one_process_after_a_death_and_when_one_process_resumes_them(
    start, tmp_path
):
    one = start("one", **TABLES)
    # A single restart was enough on a machine with ten times more work than cores; the second is a
    # reserve.
    finish(start("two", "--die-at", "22", ranks=2, restarts=2, **TABLES))
    finish(one)
    # A single process resumes the ranks' checkpoint of step 36, three images at a time.
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
        # Ranks sum in a different order, and errors grow over 40 steps.
        assert losses(RunFolder(tmp_path / name)) == pytest.approx(expected, rel=1e-5)
        embeddings = (
            np.load(RunFolder(tmp_path / folder).embeddings()) for folder in ("one", name)
        )
        np.testing.assert_allclose(
            *embeddings, rtol=1e-3, atol=1e-4
        )  # errors pass through the network


@pytest.mark.slow
def test_a_dead_rank_ends_the_run(start, tmp_path):
    errors = finish(start("run", "--die-at", "10", ranks=2), 1)
    assert "Signal 9 (SIGKILL)" in errors
    assert checkpoint.newest_intact(tmp_path / "run" / "checkpoints").step in (8, 12)


def contents(out):
    """Read all files of a run, except older checkpoints, since a stopped run saves additional
    checkpoints.
    """
    folder = RunFolder(out)
    newest = checkpoint.newest_intact(folder.checkpoints).path
    assert not list(out.rglob(".*"))
    files = [path for path in out.rglob("*") if path.is_file()]
    kept = [
        path for path in files if path.parent == newest or folder.checkpoints not in path.parents
    ]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


@pytest.mark.slow
def test_a_run_disturbed_at_random_moments_ends_with_the_bytes_of_an_undisturbed_one(
    start, tmp_path
):
    """Set ``DML_KILLS=200`` to disturb more attempts. Processes and partial files must not be
    left.
    """
    tables = {
        "training": {"steps": 100, "workers": 2, "ema_decay": 0.9},
        "backbone": {"name": "tiny"},
        "evaluation": {"every": 30, "unit": "step"},
        "validation": {"class_fraction": 0.3, "metric": "recall@1"},
        "checkpoints": {"every": 10},
    }
    draw = random.Random(os.environ.get("DML_KILLS_SEED", "0"))
    begin = time.monotonic()
    finish(start("whole", "--resume", **tables))
    seconds = time.monotonic() - begin
    for _ in range(int(os.environ.get("DML_KILLS", "4"))):
        process = start("cut", "--resume", **tables)
        time.sleep(draw.uniform(0, seconds))
        number = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
        send = draw.choice([os.kill, os.killpg])  # the first process only, or all of the session
        if process.poll() is None:
            send(process.pid, number)
            if number == signal.SIGSTOP:
                time.sleep(0.3)
                os.killpg(process.pid, signal.SIGCONT)
        process.communicate(timeout=PATIENCE)  # returns when the process and the loaders have ended
    finish(start("cut", "--resume", **tables))
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
