"""`dml train glyphs-tiny` using the installed losses and evaluator, on 1 and 4 ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from train_support.run_traces import losses

from dml_eval_rs import evaluate
from dml_train.run_folder import RunFolder


def dml_train(*arguments: str | Path) -> None:
    """Run `dml train glyphs-tiny` for a few steps on a few classes."""
    command = [sys.executable, "-m", "dml_train", "train", "glyphs-tiny", *map(str, arguments)]
    short = ["--set", "training.steps=12", "--set", "dataset.max_classes=80"]
    done = subprocess.run(
        [*command, *short], stderr=subprocess.PIPE, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_losses_of_four_ranks_match_those_of_one(tmp_path):
    dml_train("--out", tmp_path / "one")
    dml_train("--out", tmp_path / "four", "--nproc", "4")
    expected = losses(RunFolder(tmp_path / "one"))
    assert len(expected) == 12
    # Ranks sum in a different order, and errors grow over 12 steps.
    assert losses(RunFolder(tmp_path / "four")) == pytest.approx(expected, rel=1e-5)
    for run in ("one", "four"):
        measured = json.loads((tmp_path / run / "evaluation.json").read_text())
        assert measured["recall@1"] > 0.3
        embeddings, labels = (
            np.load(tmp_path / run / f"{name}.npy") for name in ("embeddings", "labels")
        )
        expected = evaluate(embeddings, labels).to_dict()
        assert {name: measured[name] for name in expected} == expected  # equal for 1 and 4 ranks
        assert "<html" in (tmp_path / run / "report.html").read_text()
