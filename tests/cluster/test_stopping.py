"""SIGTERM to a study on a cluster: its runs save, and the study ends. Behind a variable, since it takes 20 s."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [
    pytest.mark.xdist_group("ray cluster"),
    pytest.mark.skipif("DML_CLUSTER" not in os.environ, reason="set DML_CLUSTER to run it: it takes 20 s"),
]

SETTINGS = [
    "dataset.max_classes=40", "sampler.classes_per_batch=8", "training.steps=1000000", "logging.every=1",
    'logging.loggers=[{name="jsonl"}]', "checkpoints.every=1000000", "evaluation.every=500000",
    'checkpoints.unit="step"', 'evaluation.unit="step"',
]  # fmt: skip


def test_a_stopped_study_lets_its_runs_save(ray_nodes, tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    command = [sys.executable, "-m", "dml_train", "protocol", "mlrc", "glyphs-tiny", "--out", str(out)]
    command += ["--engine", "ray", "--address", ray_nodes.address, "--jobs", "2"]
    command += [f"--set={setting}" for setting in SETTINGS]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    deadline = time.monotonic() + 300
    while sum(metrics.stat().st_size > 0 for metrics in out.glob("*/*/metrics.jsonl")) < 2:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 128 + signal.SIGTERM, log.read_text()
    assert "the same call or command resumes the rest" in log.read_text()
    assert len({path.parent for path in out.glob("*/*/checkpoints/*")}) == 2, "both runs saved a checkpoint"
