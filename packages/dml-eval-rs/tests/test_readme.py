"""The examples of the README and of the page on metrics run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

METRICS = Path(__file__).parents[3] / "docs/reference/metrics.md"
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


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", METRICS.read_text(), re.DOTALL))
def test_the_examples_of_the_page_on_metrics_run(example: str) -> None:
    if "import torch" in example:
        pytest.importorskip("torch", reason="the example uses torch.distributed")
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_core_needs_numpy_alone_and_this_build_is_optimised() -> None:
    # The compiled module warns of a build without optimisation.
    program = (
        "import sys, numpy; from dml_eval_rs import evaluate; evaluate(numpy.eye(4), [0, 0, 1, 1]); "
        "print({m.split('.')[0] for m in sys.modules} & {'torch', 'pluggy', 'dml_core', 'scipy', 'sklearn'})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr
