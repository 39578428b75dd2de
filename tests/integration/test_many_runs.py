"""Parallel runs in processes give equal results, and processes must not be left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from train_support.study_runs import TINY, glyph_jobs

from dml_core import registry
from dml_train.recipe.loading import load_recipe
from dml_train.studies.runs import Job, run_all

QUIET = Console(quiet=True)


@pytest.mark.slow
def test_runs_in_several_processes_give_the_results_of_one(tmp_path):
    wrong = Job(
        "wrong",
        load_recipe(
            "glyphs-tiny", [*TINY, "training.steps=2", "sampler.classes_per_batch=99"], registry()
        ),
        tmp_path / "no",
    )
    together = run_all(
        [*glyph_jobs(tmp_path / "two", 3, "training.steps=2"), wrong],
        processes=2,
        registry=registry(),
        console=QUIET,
    )
    assert [outcome.fault is None for outcome in together] == [True, True, True, False]
    assert "classes_per_batch is 99" in str(together[-1].fault)
    alone = run_all(
        glyph_jobs(tmp_path / "one", 3, "training.steps=2"), registry=registry(), console=QUIET
    )
    for outcome, other in zip(together, alone, strict=False):
        ours, theirs = (np.load(o.job.folder / "embeddings.npy") for o in (outcome, other))
        # A different number of threads sums float32 in a different order, over two steps of a tiny
        # network.
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
        assert outcome.seconds() is not None


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie, which might not be reaped in a container, does
    not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # the process has ended
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(),
    reason="looks for child processes in /proc",
)
def test_a_signal_to_the_parent_stops_its_processes_after_they_saved(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "dml_train",
        "reproduce",
        "ice/6",
        "--jobs",
        "2",
        "--out",
        str(out),
    ]
    endless = ("training.steps=100000", 'logging.loggers=[{name="jsonl"}]', "logging.every=1")
    command += [f"--set={setting}" for setting in (*TINY, *endless)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    output = Path(log.name)
    deadline = time.monotonic() + 600  # the wait takes 15 s on an idle machine
    while sum(metrics.stat().st_size > 0 for metrics in out.glob("runs/*/metrics.jsonl")) < 2:
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    workers = children(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 128 + signal.SIGTERM
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "the same call or command resumes the rest" in output.read_text()
    assert len({path.parent for path in out.glob("runs/*/checkpoints/*")}) == 2, (
        "both running trainings saved a checkpoint"
    )
