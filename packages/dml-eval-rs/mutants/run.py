"""Kill every mutant: each fault of mutants.toml is built into the evaluator, and the tests must
fail.

Usage: python packages/dml-eval-rs/mutants/run.py [GROUP/NAME ...]
It works in a copy of the repository, keeps the build in target/mutants, and exits with 1 if a
mutant survives.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
TARGET = REPOSITORY / "target" / "mutants"
# Some faults make a search endless. A mutant is killed if a suite takes this many times as long as
# the tests of paths without a fault; these take about a fifth of the longest suite.
PATIENCE = {"paths": 4, "core": 20, "evaluator": 20, "relations": 20}


def mutants() -> dict[str, dict[str, str]]:
    """Return each mutant's file, and the text that it replaces by another."""
    groups = tomllib.loads((HERE / "mutants.toml").read_text())
    return {
        f"{group}/{name}": mutant
        for group, named in groups.items()
        for name, mutant in named.items()
    }


def source_of(mutant: Mapping[str, str], repository: Path = REPOSITORY) -> Path:
    """Return the file that a mutant changes."""
    return repository / "packages/dml-eval-rs/core/src" / mutant["file"]


def cargo(verb: str, package: str) -> list[str]:
    """Return a command that builds quickly: little optimised, and only what changed."""
    options = ("opt-level=1", "incremental=true")
    profile = ["--profile", "tests", *(f"--config=profile.tests.{option}" for option in options)]
    return ["cargo", verb, "--quiet", "--package", package, *profile]


def suites(copy: Path) -> dict[str, Callable[[float | None], bool]]:
    """Return the tests, the fastest first: each tells whether it passes within some seconds."""
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(TARGET),
        "PYO3_PYTHON": sys.executable,
        "PYTHONPATH": str(copy / "packages/dml-eval-rs/python"),
        "OMP_NUM_THREADS": "1",
        "RUST_BACKTRACE": "0",
    }

    def passes(*command: str | Path, within: float | None) -> bool:
        # In a new session, the processes that cargo starts can be killed, too.
        process = subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(within) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False

    def built_and_tested(*arguments: str, within: float | None) -> bool:
        subprocess.run(cargo("build", "dml-eval-rs"), cwd=copy, env=environment, check=True)
        shutil.copy(
            TARGET / "tests" / "lib_native.so",
            copy / "packages/dml-eval-rs/python/dml_eval_rs/_native.abi3.so",
        )
        options = [
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile=ci",
        ]  # before another profile
        return passes(sys.executable, "-m", "pytest", *options, *arguments, within=within)

    tests = "packages/dml-eval-rs/tests"
    return {
        "paths": lambda within: built_and_tested(f"{tests}/test_paths.py", within=within),
        "core": lambda within: passes(*cargo("test", "dml-eval"), within=within),
        "evaluator": lambda within: built_and_tested(
            tests, "--deselect", f"{tests}/test_paths.py", within=within
        ),
        "relations": lambda within: built_and_tested(
            f"{tests}/test_relations_between_calls.py",
            "--hypothesis-profile=search",
            within=within,
        ),
    }


def main(names: list[str]) -> int:
    """Try the named mutants (GROUP/NAME), or all; print which tests killed each."""
    chosen = {name: mutant for name, mutant in mutants().items() if not names or name in names}
    if unknown := sorted(set(names) - chosen.keys()):
        sys.exit(f"no mutants {', '.join(unknown)}; expected GROUP/NAME of mutants.toml")
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "repository"
        files = subprocess.run(
            ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True
        )
        for name in files.stdout.decode().split("\0")[:-1]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            # A copy has a new time, so cargo also rebuilds the file that the last run's mutant
            # changed.
            shutil.copy(REPOSITORY / name, copy / name)
        tests = suites(copy)
        start = time.perf_counter()
        if not tests["paths"](None):
            sys.exit("the tests fail without a mutant; expected them to pass")
        usual = time.perf_counter() - start
        for name, mutant in chosen.items():
            source, start = source_of(mutant, copy), time.perf_counter()
            original = source.read_text()
            source.write_text(original.replace(mutant["from"], mutant["to"]))
            killer = next(
                (suite for suite, passes in tests.items() if not passes(PATIENCE[suite] * usual)),
                None,
            )
            source.write_text(original)
            print(
                f"{name}: {f'killed by {killer}' if killer else 'SURVIVED'}, "
                f"{time.perf_counter() - start:.0f} s"
            )
            sys.stdout.flush()
            if killer is None:
                survivors.append(name)
    print(
        f"{len(survivors)} survived: {', '.join(survivors)}"
        if survivors
        else "all mutants were killed"
    )
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
