"""CONTRIBUTING's lists of places are complete: with something new in exactly these places, a copy passes its checks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = (
    "packages",
    "docs",
    "tests",
    "pyproject.toml",
    "conftest.py",
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
)
LOSSES = "packages/dml-losses/src/dml_losses"
TRAIN = "packages/dml-train/src/dml_train"
MODULE = '''"""A loss that pulls rows together."""

import torch

from dml_losses.functional.plain_pull import plain_pull


class PlainPull(torch.nn.Module):
    """Mean of 1 - cosine over positives."""

    def forward(self, embeddings, labels, gallery=None, gallery_labels=None):
        """Compute the scalar loss."""
        return plain_pull(embeddings, labels, gallery, gallery_labels)
'''
FUNCTION = '''"""A loss that pulls rows together."""

import torch
from torch.nn.functional import normalize


def plain_pull(embeddings, labels, gallery=None, gallery_labels=None):
    """Compute the mean of 1 - cosine over positives."""
    alone = gallery is None
    if alone:
        gallery, gallery_labels = embeddings, labels
    cosines = normalize(embeddings.float(), eps=1e-6) @ normalize(gallery.float(), eps=1e-6).T
    positive = labels[:, None] == gallery_labels
    if alone:
        positive = positive & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return ((1 - cosines) * positive).sum() / positive.sum().clamp(min=1)
'''
COMPONENT = '    ("plain-pull", "PlainPull", "pulls rows together", ""),\n'
DATA = '''"""A folder by another name."""

from dml_train.data.image_folder import read_image_folder


def read_plain_folder(root: str):
    """List a folder's images."""
    return read_image_folder(root)
'''
FACTORY = "plain_folder = FileDatasetFactory(read_plain_folder)\n"
DATASET = '    yield Component("plain-folder", "dml_train.data.factories:plain_folder", "a folder")\n'
COMMAND = '''"""`dml plain`."""

import click


@click.command("plain")
def plain_command() -> None:
    """Say hello."""
    click.echo("hello")
'''


def write(text: str) -> Callable[[str], str]:
    return lambda _: text


def insert(new: str, before: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert before in text
        return text.replace(before, new + before, 1)

    return edit


def append(new: str) -> Callable[[str], str]:
    return lambda text: text + new


def both(first: Callable[[str], str], second: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: second(first(text))


IMPORT_COMMAND = "from dml_train.commands.plain_command import plain_command\n"
ADDITIONS: dict[str, tuple[str, dict[str, Callable[[str], str]], list[list[str]]]] = {
    "A loss": (
        "plain_pull",
        {
            f"{LOSSES}/functional/plain_pull.py": write(FUNCTION),
            f"{LOSSES}/functional/__init__.py": insert(
                "from dml_losses.functional.plain_pull import plain_pull as plain_pull\n",
                "from dml_losses.functional.proxy_anchor",
            ),
            f"{LOSSES}/plain_pull.py": write(MODULE),
            f"{LOSSES}/__init__.pyi": append("from dml_losses.plain_pull import PlainPull as PlainPull\n"),
            f"{LOSSES}/plugin.py": insert(COMPONENT, '    ("ranked-list", '),
            "pyproject.toml": insert("plain_pull | ", "pml | proxy_anchor"),
            "docs/reference/losses.md": insert("| `plain-pull` | `PlainPull` |\n", "| `sup-con` |"),
        },
        [
            [
                *("-m", "pytest", "-q", "-k", "plain-pull"),
                *(
                    f"packages/dml-losses/tests/test_{file}.py"
                    for file in ("loss_contract", "docs_of_losses", "devices")
                ),
            ],
            ["-c", "import dml_losses; dml_losses.PlainPull; assert 'PlainPull' in dml_losses.__all__"],
        ],
    ),
    "A data set of image files": (
        "plain_folder",
        {
            f"{TRAIN}/data/plain_folder.py": write(DATA),
            f"{TRAIN}/data/factories.py": both(
                insert("from dml_train.data.plain_folder import read_plain_folder\n", "\nimage_folder ="),
                append(FACTORY),
            ),
            f"{TRAIN}/plugin.py": insert(DATASET, '    yield Component(\n        "csv",\n'),
            "docs/guide/data.md": insert("| `plain-folder` | a folder | |\n", "| `csv` |"),
        },
        [["-m", "pytest", "-q", "tests/policy/test_components.py", "-k", "plain-folder"]],
    ),
    "A command": (
        "plain_command",
        {
            f"{TRAIN}/commands/plain_command.py": write(COMMAND),
            f"{TRAIN}/commands/__init__.py": both(
                insert(IMPORT_COMMAND, "from dml_train.commands.protocol"),
                insert("    plain_command,\n", "    protocol,\n"),
            ),
        },
        [
            ["-m", "dml_train", "plain"],
            ["-m", "pytest", "-q", "packages/dml-train/tests/test_cli.py", "-k", "help"],
        ],
    ),
}


def places(kind: str, name: str) -> set[str]:
    """Return the files that CONTRIBUTING lists for this kind of thing."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^{kind}\b[^\n]*:\n\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return {row.replace("NAME", name) for row in re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADDITIONS)
def test_the_listed_places_are_enough(kind: str, tmp_path: Path) -> None:
    name, edits, checks = ADDITIONS[kind]
    assert places(kind, name) == set(edits)
    for path in COPIED:
        if (ROOT / path).is_dir():
            shutil.copytree(
                ROOT / path, tmp_path / path, ignore=shutil.ignore_patterns("target", "__pycache__")
            )
        else:
            shutil.copy(ROOT / path, tmp_path / path)
    for path, edit in edits.items():
        file = tmp_path / path
        file.write_text(edit(file.read_text(encoding="utf-8") if file.exists() else ""), encoding="utf-8")
    sources = ["dml-core/src", "dml-losses/src", "dml-train/src", "dml-eval-rs/python"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(tmp_path / "packages" / source) for source in sources),
        "OMP_NUM_THREADS": "1",
    }
    rules = ["-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"]
    for check in [*checks, rules]:
        done = subprocess.run(
            [sys.executable, *check],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
