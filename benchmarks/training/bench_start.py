"""Measure the processor time of imports, and of commands that only print lists or help.

Cases are run in new processes. The result is the minimum over `ROUNDS` rounds, in which all cases
take turns. For comparison, the table includes imports of numpy and torch.

    python benchmarks/training/bench_start.py [--out benchmarks/results/training-start.txt]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path

ROUNDS = 5
IMPORTS = ("dml_core", "dml_losses", "dml_eval_rs", "dml_train", "numpy", "torch")
USES = (
    "from dml_eval_rs import evaluate",
    "from dml_losses import NormSoftmax",
    "from dml_train import train",
)
COMMANDS = ("--help", "recipes", "plugins", "plugins norm-softmax", "trian", "train --help")
COMMANDS += ("train no-such-recipe --out x",)
COMPLETIONS = ("dml ", "dml tr")


def seconds(arguments: list[str], extra: dict[str, str] | None = None) -> float:
    """Run Python with these arguments; return the user and system time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **(extra or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cases() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the cases' arguments and environments by title."""
    found: dict[str, tuple[list[str], dict[str, str]]] = {"python -c pass": (["-c", "pass"], {})}
    for statement in (*(f"import {module}" for module in IMPORTS), *USES):
        found[statement] = (["-c", statement], {})
    for command in COMMANDS:
        found[f"dml {command}"] = (["-m", "dml_train", *command.split()], {})
    for typed in COMPLETIONS:
        words = {
            "_DML_COMPLETE": "bash_complete",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(typed.count(" ")),
        }
        run = (
            "import sys; sys.argv[0] = 'dml'; from dml_train.cli import main; main(prog_name='dml')"
        )
        found[f"completion of '{typed}'"] = (["-c", run], words)
    found["dml-eval --help"] = (["-m", "dml_eval_rs", "--help"], {})
    return found


def cpu() -> str:
    """Name the processor."""
    names = re.findall("^model name.*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


def main() -> None:
    """Measure all cases to print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    least: dict[str, float] = {}
    for _ in range(ROUNDS):
        for title, (arguments, extra) in cases().items():
            least[title] = min(seconds(arguments, extra), least.get(title, float("inf")))
    width = max(map(len, least))
    lines = [
        "Processor time (user and system) of one process, best of 5; bench_start.py.",
        f"CPU: {cpu()}; Python {platform.python_version()}; files in the page cache.",
        "",
        *(f"{title:<{width}}  {value:6.3f} s" for title, value in least.items()),
    ]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
