"""All examples must run: Python blocks of the pages, and the programs in examples/. `make docs`
runs the tutorials.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = [page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "tutorials"]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md")), *DOCS]
# Peers that are too large for the development environment. Pages that use a peer only run if it is
# installed.
LARGE = ("mteb", "oml", "sentence_transformers")
PROGRAMS = sorted(ROOT.glob("examples/*.py"))
FOLDERS = sorted(path.parent for path in ROOT.glob("examples/*/README.md"))


def blocks(page: Path) -> list[str]:
    """Return the page's Python blocks, except those with a `...`, which only sketch a form."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [block for block in found if "..." not in block and "import" in block]


# The Python of a page runs in a new process, and most pages import torch, so these tests are slow.
PAGES_WITH_PYTHON = [
    pytest.param(
        page, marks=() if page.parent == ROOT else pytest.mark.slow, id=str(page.relative_to(ROOT))
    )
    for page in PAGES
    if blocks(page)
]


def run(script: Path, folder: Path, warnings: str = "error") -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", warnings, str(script)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_has_examples():
    assert len(blocks(ROOT / "README.md")) >= 3


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    code = "\n".join(blocks(page))
    peers = [
        name for name in LARGE if re.search(rf"^(?:import|from) {name}\b", code, flags=re.MULTILINE)
    ]
    for name in peers:
        if find_spec(name) is None:
            pytest.skip(f"the page compares with {name}, which is not installed")
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    run(script, tmp_path, "ignore" if peers else "error")  # peers may warn


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_runs(program, tmp_path):
    run(program, tmp_path)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_folder_has_its_own_test(folder):
    tests = [test for test in ROOT.glob("tests/**/test_*.py") if test != Path(__file__)]
    assert any(folder.name in test.read_text(encoding="utf-8") for test in tests), (
        f"no test in tests/ runs examples/{folder.name}"
    )
