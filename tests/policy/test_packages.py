"""Packages can be released separately: each has all files, and requires compatible versions of the
other packages.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
OURS = {"dml-core", "dml-losses", "dml-eval-rs", "dml-train"}


def metadata(package: Path) -> dict:
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(package: Path) -> list[str]:
    project = metadata(package)
    extras = project.get("optional-dependencies", {}).values()
    return [*project.get("dependencies", []), *(item for extra in extras for item in extra)]


def test_all_four_packages_are_here():
    assert {package.name for package in PACKAGES} == OURS


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_has_its_files_a_changelog_of_its_version_and_compatible_ranges(package):
    for name in ("README.md", "CHANGELOG.md", "tests"):
        assert (package / name).exists(), f"{package.name} has no {name}"
    newest = re.search(
        r"^## (\S+)", (package / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert newest is not None
    assert newest[1] == metadata(package)["version"]
    for requirement in requirements(package):
        name = re.match(r"[\w.-]+", requirement)[0]
        if name in OURS - {package.name}:  # an extra may name other extras of the same package
            assert re.search(r">=\d+\.\d+.*,<\d+\.\d+", requirement), (
                f"{requirement}: expected >=X.Y,<X.Z"
            )


def test_the_evaluator_needs_numpy_alone():
    assert [
        re.match(r"[\w-]+", r)[0] for r in metadata(ROOT / "packages/dml-eval-rs")["dependencies"]
    ] == ["numpy"]


@pytest.mark.parametrize("name", ["uv.lock", "poetry.lock", "pdm.lock"])
def test_lock_files_with_addresses_are_not_tracked(name):
    assert (
        name in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
        or not (ROOT / name).exists()
    )


def test_requirements_are_pinned_with_hashes_and_name_no_registry():
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text, f"{path.name} contains an address"
        for line in re.findall(r"^[a-z0-9].*$", text, flags=re.MULTILINE):
            assert "==" in line, f"{path.name}: {line} is not pinned"
        assert text.count("--hash=sha256:") >= text.count("==")
