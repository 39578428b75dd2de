"""The examples in the README and in the pages on metrics and verification can be run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[3] / "docs/reference"
PAGES = (
    Path(__file__).parents[1] / "README.md",
    REFERENCE / "metrics.md",
    REFERENCE / "verification.md",
)
EXAMPLES = {
    page.stem: re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES
}


def run(program: str) -> str:
    """Run a program, using warnings as errors; return the output."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_example_runs_on_its_own() -> None:
    (example,) = EXAMPLES["README"]
    assert run(example).startswith("Recall@1")


@pytest.mark.parametrize("example", EXAMPLES["metrics"] + EXAMPLES["verification"])
def test_the_examples_of_the_pages_run(example: str) -> None:
    for package in ("torch", "faiss"):
        if f"import {package}" in example:
            pytest.importorskip(package, reason=f"the example uses {package}")
    assert ("HNSW" in run(example)) == ("HNSW" in example)


def test_the_core_needs_numpy_alone_and_this_build_is_optimised() -> None:
    # If the build is not optimised, the compiled module warns.
    others = "{'torch', 'pluggy', 'dml_core', 'scipy', 'sklearn'}"
    call = (
        "import sys, numpy; from dml_eval_rs import evaluate; evaluate(numpy.eye(4), [0, 0, 1, 1])"
    )
    assert run(f"{call}; print({{m.split('.')[0] for m in sys.modules}} & {others})") == "set()\n"
