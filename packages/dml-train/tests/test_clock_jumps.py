"""A wall clock that jumps by years must not change a run."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import pytest
import torch
from rich.console import Console

from dml_train import progress
from dml_train.training.step_values import StepValues


@contextmanager
def jumping_clock() -> Iterator[None]:
    """Make `time.time` and `time.time_ns` return random times between 1970 and 2096."""
    draw = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: draw.uniform(0, 4e9))
        patch.setattr(time, "time_ns", lambda: draw.randrange(4 * 10**18))
        yield


def test_a_run_is_the_same_while_the_clock_jumps(run, tmp_path):
    tables = {
        "evaluation": {"every": 3.0, "unit": "step"},
        "validation": {"class_fraction": 0.25, "metric": "recall@1"},
        "logging": {"every": 1},
    }
    calm = run(tmp_path / "calm", **tables)
    with jumping_clock():
        hasty = run(tmp_path / "hasty", **tables)
    assert hasty.evaluation.read_bytes() == calm.evaluation.read_bytes()
    for found, expected in zip(
        *(sorted(f.checkpoints.rglob("*.*")) for f in (hasty, calm)), strict=True
    ):
        assert found.relative_to(hasty.path) == expected.relative_to(calm.path)
        assert found.read_bytes() == expected.read_bytes()
    assert hasty.read_metrics() == calm.read_metrics()


def test_the_speed_is_positive_and_the_time_left_never_negative(monkeypatch):
    with jumping_clock():
        values = StepValues()
        values.add(1, {"loss": torch.zeros(())}, {}, images=8)
        ((_, row),) = values.flush()
    assert 0 < row["time/images_per_second"] < math.inf
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    shown = StringIO()
    with jumping_clock(), progress.stage(Console(file=shown), "train", 5) as show:
        for step in range(1, 6):
            show(step, "")
    assert re.fullmatch(r"(train \d/5  0:00 left\n){4}train 5/5\n", shown.getvalue())
