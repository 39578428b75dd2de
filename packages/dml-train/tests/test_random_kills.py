"""Signals at random moments of a run with loaders. ``DML_KILLS=200`` sets the number of disturbed attempts.

The invariant: whatever happened to its processes, a resumed run ends with the bytes of an undisturbed one, and leaves
neither a process nor a partial file. `test_killing` and `test_launching` do the same to ranks, at chosen moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time

import pytest
from train_support import tiny_run
from train_support.tiny_world import make_document

from dml_train.run_folder import RunFolder
from dml_train.training import checkpoint

PATIENCE = 600  # seconds after which a process counts as hanging
KILLS = int(os.environ.get("DML_KILLS", "4"))
DOCUMENT = make_document(
    training={"steps": 100, "workers": 2, "ema_decay": 0.9},
    evaluation={"every": 30, "unit": "step"},
    validation={"class_fraction": 0.3, "metric": "recall@1"},
    checkpoints={"every": 10},
)


@pytest.fixture
def start(tmp_path):
    """Start or resume the run in a folder, as the leader of a session that its loaders share."""
    (tmp_path / "run.json").write_text(json.dumps(DOCUMENT))

    def start(out):
        return subprocess.Popen(
            tiny_run.command(tmp_path / "run.json", out, "--resume"),
            cwd=tiny_run.FOLDER,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def contents(out):
    """Read all files of a run; of the checkpoints only the newest, since a run that was stopped has saved others."""
    folder = RunFolder(out)
    newest = checkpoint.newest_intact(folder.checkpoints).path
    assert not list(out.rglob(".*"))
    files = [path for path in out.rglob("*") if path.is_file()]
    kept = [path for path in files if path.parent == newest or folder.checkpoints not in path.parents]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


@pytest.mark.slow
def test_a_run_disturbed_at_random_moments_ends_with_the_bytes_of_an_undisturbed_one(start, tmp_path):
    draw = random.Random(os.environ.get("DML_KILLS_SEED", "0"))
    begin = time.monotonic()
    whole = start(tmp_path / "whole")
    errors = whole.communicate(timeout=PATIENCE)[1]
    assert whole.returncode == 0, errors
    seconds = time.monotonic() - begin
    for _ in range(KILLS):
        process = start(tmp_path / "cut")
        time.sleep(draw.uniform(0, seconds))
        number = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
        send = draw.choice([os.kill, os.killpg])  # the first process only, or all of the session
        if process.poll() is None:
            send(process.pid, number)
            if number == signal.SIGSTOP:
                time.sleep(0.3)
                os.killpg(process.pid, signal.SIGCONT)
        process.communicate(timeout=PATIENCE)  # returns when the process and all its loaders have ended
    last = start(tmp_path / "cut")
    errors = last.communicate(timeout=PATIENCE)[1]
    assert last.returncode == 0, errors
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
