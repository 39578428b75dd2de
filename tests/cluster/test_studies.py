"""The studies on a cluster that loses a machine give the results of this machine. Behind a variable: minutes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dml_train.run_folder import RunFolder

pytestmark = [
    pytest.mark.xdist_group("ray cluster"),
    pytest.mark.skipif("DML_CLUSTER" not in os.environ, reason="set DML_CLUSTER to run it: it takes minutes"),
]

SETTINGS = [
    "dataset.max_classes=40", "sampler.classes_per_batch=8", "training.steps=300", "logging.loggers=[]",
    "checkpoints.every=10", 'checkpoints.unit="step"',
]  # fmt: skip
STUDIES = {
    "tune": "tune glyphs-tiny --range loss.temperature=0.02:0.2:log --trials 2 --folds 3",
    "protocol": "protocol mlrc glyphs-tiny",
    "reproduce": "reproduce ice/table-6",
}
# Files with the time of a run, and, in a search's journal, the names of processes.
TIMES = {"seconds.json", "journal.log", "tuning.json", "tuning.md", "ice-table-6.json", "ice-table-6.md"}


def start(study: str, out: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dml_train", *STUDIES[study].split(), "--out", str(out), *options]
    with log.open("w") as file:
        return subprocess.Popen(
            [*command, *(f"--set={setting}" for setting in SETTINGS)], stdout=file, stderr=file
        )


def results(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in TIMES
    }


def training(out: Path) -> set[Path]:
    """Return the folders of the runs that have a checkpoint and aren't finished."""
    runs = {path.parents[1] for path in out.rglob("step-*")}
    return {run for run in runs if not RunFolder(run).is_finished}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_outlives_a_machine(ray_nodes, tmp_path, study):
    there, here, log = tmp_path / "there", tmp_path / "here", tmp_path / "log"
    process = start(study, there, log, "--engine", "ray", "--address", ray_nodes.address)
    deadline = time.monotonic() + 300
    while len(training(there)) < 3:  # each machine is training now
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    ray_nodes.kill_worker()
    assert process.wait(timeout=600) == 0, log.read_text()
    assert "it resumes elsewhere" in log.read_text()
    alone = start(study, here, tmp_path / "log-here")
    assert alone.wait(timeout=600) == 0, log.read_text()
    assert results(there) == results(here)
