"""The README's example runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import dml_eval_rs

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_example_runs_on_its_own() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Recall@1")


def test_the_core_needs_numpy_alone() -> None:
    program = (
        "import sys, dml_eval_rs; "
        "print({m.split('.')[0] for m in sys.modules} & {'torch', 'pluggy', 'dml_core', 'scipy', 'sklearn'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "set()"


def test_this_build_is_optimised() -> None:
    assert dml_eval_rs._native.OPTIMIZED
