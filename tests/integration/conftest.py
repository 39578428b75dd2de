"""Wheels as published, and empty environments to install wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
PACKAGES = ("dml-core", "dml-losses", "dml-eval-rs", "dml-train")


def run(*command: str | Path, cwd: Path = ROOT, code: int = 0) -> str:
    """Run a command that must exit with this code, and return the output, or the errors if the code
    is not 0.
    """
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment with packages installed from wheels only."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    def uninstall(self, package: str) -> None:
        run(UV, "pip", "uninstall", "--quiet", "--python", self.python, package, cwd=self.folder)

    def install(self, *requirements: str | Path, find_links: Path) -> None:
        """Install from the wheels in a folder, using the pinned versions of dependencies."""
        run(
            UV, "pip", "install", "--quiet", "--python", self.python, "--find-links", find_links,
            "--constraint", ROOT / "requirements/dev.txt", *requirements, cwd=self.folder,
        )  # fmt: skip

    def python_script(self, text: str) -> str:
        """Run a script, using warnings as errors, and return the output."""
        script = self.folder / "script.py"
        script.write_text(text, encoding="utf-8")
        return run(self.python, "-W", "error", script, cwd=self.folder)

    def command(self, name: str, *arguments: str | Path, code: int = 0) -> str:
        """Run an installed command, as `run` does."""
        return run(self.folder / "bin" / name, *arguments, cwd=self.folder, code=code)

    def packages(self) -> set[str]:
        """Return the names of all installed packages."""
        listing = run(UV, "pip", "freeze", "--python", self.python, cwd=self.folder)
        return {line.split("==")[0].split(" @ ")[0] for line in listing.splitlines()}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel per package into a folder."""
    folder = tmp_path_factory.mktemp("wheels")
    for package in PACKAGES:
        run(UV, "build", "--quiet", "--wheel", "--package", package, "--out-dir", folder)
    run(
        sys.executable,
        ROOT / "packages/dml-eval-rs/rezip_wheel.py",
        *folder.glob("dml_eval_rs-*.whl"),
    )
    return folder


def make_environment(folder: Path) -> Environment:
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    return Environment(folder)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    """Make an empty environment, to be deleted after the test: with torch it will use gigabytes."""
    yield make_environment(tmp_path / "environment")
    shutil.rmtree(tmp_path / "environment")


@pytest.fixture(scope="session")
def complete(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Install the trainer with all extras into an empty environment; tests may install more."""
    complete = make_environment(tmp_path_factory.mktemp("complete") / "environment")
    complete.install("dml-train[all]", find_links=wheels)
    yield complete
    shutil.rmtree(complete.folder)
