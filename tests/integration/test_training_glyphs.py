"""`dml train glyphs-tiny` with the installed losses and evaluator: ranks, signals, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dml_eval_rs import evaluate

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


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_losses_of_four_ranks_match_those_of_one(tmp_path):
    finish(start("train", "glyphs-tiny", *SHORT, "--out", tmp_path / "one"), 0)
    finish(start("train", "glyphs-tiny", *SHORT, "--out", tmp_path / "four", "--nproc", "4"), 0)
    expected = losses(tmp_path / "one")
    assert len(expected) == 12
    assert losses(tmp_path / "four") == pytest.approx(
        expected, rel=1e-5
    )  # sums in another order, 12 steps long
    for run in ("one", "four"):
        measured = json.loads((tmp_path / run / "evaluation.json").read_text())
        assert measured["recall@1"] > 0.3
        embeddings, labels = (np.load(tmp_path / run / f"{name}.npy") for name in ("embeddings", "labels"))
        expected = evaluate(embeddings, labels).to_dict()
        assert {name: measured[name] for name in expected} == expected  # for any number of ranks
        assert "<html" in (tmp_path / run / "report.html").read_text()


def test_a_terminated_run_is_kept_and_resumes_only_with_the_option(tmp_path):
    run = tmp_path / "run"
    # Long enough for this process to see the first step and send the signal before the run ends.
    tables = ("--set", "dataset.max_classes=80", "--set", "training.steps=80", "--set", "logging.every=1")
    arguments = ("train", "glyphs-tiny", *tables, "--out", run)
    process = start(*arguments)
    deadline = time.monotonic() + PATIENCE
    while not ((run / "metrics.jsonl").exists() and losses(run)) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = finish(process, 128 + signal.SIGTERM)
    assert "stopped by SIGTERM after step" in errors
    assert "Traceback" not in errors
    done = losses(run)

    output, errors = finish(start(*arguments), 2)
    assert output == ""
    assert errors.startswith(f"error: the run folder {run} exists already; nothing was touched.")
    assert losses(run) == done

    finish(start(*arguments, "--resume"), 0)
    assert len(losses(run)) == 80
    assert losses(run)[: len(done)] == done
