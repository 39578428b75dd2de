"""`dml train glyphs-tiny` with the installed losses and evaluator, on one rank and on four."""

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

PATIENCE = (
    600  # seconds after which a process counts as hanging; on an idle machine, each takes less than fifty
)
SHORT = ("--set", "training.steps=12", "--set", "dataset.max_classes=80")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dml_train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, errors
    return output, errors


@pytest.mark.slow
def test_losses_of_four_ranks_match_those_of_one(tmp_path):
    finish(start("train", "glyphs-tiny", *SHORT, "--out", tmp_path / "one"), 0)
    finish(start("train", "glyphs-tiny", *SHORT, "--out", tmp_path / "four", "--nproc", "4"), 0)
    expected = losses(RunFolder(tmp_path / "one"))
    assert len(expected) == 12
    assert losses(RunFolder(tmp_path / "four")) == pytest.approx(
        expected, rel=1e-5
    )  # sums in another order, 12 steps long
    for run in ("one", "four"):
        measured = json.loads((tmp_path / run / "evaluation.json").read_text())
        assert measured["recall@1"] > 0.3
        embeddings, labels = (np.load(tmp_path / run / f"{name}.npy") for name in ("embeddings", "labels"))
        expected = evaluate(embeddings, labels).to_dict()
        assert {name: measured[name] for name in expected} == expected  # for any number of ranks
        assert "<html" in (tmp_path / run / "report.html").read_text()
