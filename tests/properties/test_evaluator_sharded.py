"""The example that shards a gallery over torchrun ranks gives the bits of one call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dml_eval_rs import evaluate

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded-evaluation" / "evaluate_sharded.py"

pytest.importorskip("torch", reason="torchrun comes with torch")


def test_ranks_sum_their_counts_to_one_evaluation(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 60, 400)
    x = rng.normal(size=(60, 8))[labels] + rng.normal(size=(400, 8))
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    np.save(tmp_path / "l.npy", labels)
    # localhost, since not every machine can resolve its own name.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=localhost", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, str(EXAMPLE), "x.npy", "l.npy", "--queries", "400", "--block", "90"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    assert json.loads(line) == evaluate(x.astype(np.float32), labels).to_dict()
