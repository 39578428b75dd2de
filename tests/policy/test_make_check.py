"""`make check` runs all its tools, whatever the first ones find, and names those that failed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = ("check-format", "check-imports", "check-types")


@pytest.mark.parametrize(
    ("failing", "ending"),
    [((), None), (("ruff",), "failed: check-format"), (("ruff", "mypy"), "failed: check-format check-types")],
)
def test_every_tool_runs_and_each_failure_is_named(tmp_path, failing, ending):
    for tool in ("ruff", "mypy", "lint-imports"):
        file = tmp_path / tool
        file.write_text(f"#!/bin/sh\necho ran {tool}\nexit {int(tool in failing)}\n", encoding="utf-8")
        file.chmod(0o755)
    # `make test` runs this, and a make within a make says which folders it enters and leaves.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        ["make", "--old-file=setup", "check", f"CHECKS={' '.join(CHECKS)}", f"BIN={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if line.startswith("ran ")] == [
        "ran ruff", "ran lint-imports", "ran mypy"
    ]  # fmt: skip
    assert (done.returncode == 0) == (ending is None)
    if ending:
        assert done.stdout.splitlines()[-1] == ending
