"""Studies on a cluster: if a machine dies, the results must not change; if a study is stopped, the
runs save.

Set the variable DML_CLUSTER to run these tests, which take minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from train_support.study_runs import result_files

from dml_train.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "DML_CLUSTER" not in os.environ, reason="set DML_CLUSTER to run it: it takes minutes"
    ),
]

SETTINGS = [
    "dataset.max_classes=40", "sampler.classes_per_batch=8", "training.steps=300",
    "logging.loggers=[]",
    "checkpoints.every=10", 'checkpoints.unit="step"',
]  # fmt: skip
STUDIES = {
    "tune": "tune glyphs-tiny --range loss.temperature=0.02:0.2:log --trials 2 --folds 3",
    "protocol": "protocol mlrc glyphs-tiny",
    "reproduce": "reproduce ice/table-6",
}
# These files contain the times of runs or, in a search's journal, the names of processes.
TIMES = frozenset(
    {
        "seconds.json",
        "journal.log",
        "tuning.json",
        "tuning.md",
        "ice-table-6.json",
        "ice-table-6.md",
    }
)


def start(study: str, out: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    settings = [f"--set={setting}" for setting in SETTINGS]
    command = [sys.executable, "-m", "dml_train", *STUDIES[study].split(), "--out", str(out)]
    with log.open("w") as file:
        return subprocess.Popen([*command, *settings, *options], stdout=file, stderr=file)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def training(out: Path) -> set[Path]:
    """Return the folders of the runs that have a checkpoint and aren't finished."""
    runs = {path.parents[1] for path in out.rglob("step-*")}
    return {run for run in runs if not RunFolder(run).is_finished}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_outlives_a_machine(ray_nodes, tmp_path, study):
    there, here, log = tmp_path / "there", tmp_path / "here", tmp_path / "log"
    process = start(study, there, log, "--engine", "ray", "--address", ray_nodes.address)
    wait_until(lambda: len(training(there)) >= 3, process, log)  # all machines are training now
    ray_nodes.kill_worker()
    assert process.wait(timeout=600) == 0, log.read_text()
    assert "it resumes elsewhere" in log.read_text()
    alone = start(study, here, tmp_path / "log-here")
    assert alone.wait(timeout=600) == 0, log.read_text()
    assert result_files(there, besides=TIMES) == result_files(here, besides=TIMES)


def test_a_stopped_study_lets_its_runs_save(ray_nodes, tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    endless = [
        "training.steps=1000000", "logging.every=1", 'logging.loggers=[{name="jsonl"}]',
        "checkpoints.every=1000000",
        "evaluation.every=500000", 'evaluation.unit="step"',
    ]  # fmt: skip
    options = ["--engine", "ray", "--address", ray_nodes.address, "--jobs", "2"]
    process = start("protocol", out, log, *options, *(f"--set={setting}" for setting in endless))

    def both_train():
        return sum(metrics.stat().st_size > 0 for metrics in out.glob("*/*/metrics.jsonl")) == 2

    wait_until(both_train, process, log)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 128 + signal.SIGTERM, log.read_text()
    assert "the same call or command resumes the rest" in log.read_text()
    assert len({path.parent for path in out.glob("*/*/checkpoints/*")}) == 2, (
        "both runs saved a checkpoint"
    )
