"""Options, checks and error messages that commands share.

``dml --help`` and shell completion import all commands, so a command should import torch, numpy and
rich only when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dml_core import DmlError
from dml_train.processes.limits import MOST_PROCESSES
from dml_train.processes.stopping import Interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dml_train.studies.runs import Job

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
SET = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help=(
        "Set a key of the recipe (loss.scale=32) or a table ('loss={name=\"arc-face\"}'); "
        "repeatable."
    ),
)
STEP = click.option(
    "--step",
    type=click.IntRange(min=1),
    help=(
        "Use the weights of this step's checkpoint; default: the weights that the run was "
        "evaluated with."
    ),
)
ON_BAD_IMAGE = click.option(
    "--on-bad-image",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Whether to stop at an image that can't be decoded, or to skip it.",
)
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1, MOST_PROCESSES),
    help="Number of runs to train at a time; default: 1; with --engine ray: as many as fit.",
)
LIST_COMMANDS = click.option(
    "--list-commands",
    is_flag=True,
    help=(
        "Don't train, but print a command for each unfinished run, for any scheduler; then repeat "
        "this command."
    ),
)
# Maps arguments of Python functions to the options for them, if the names differ.
_OPTIONS = {"skip": "--on-bad-image skip", "space": "--range, --choice or --space"}


def error_console() -> Console:
    """Return the console to show progress, on the error stream."""
    from rich.console import Console

    return Console(stderr=True)


def echo_commands(jobs: Sequence[Job]) -> None:
    """Print the commands of a study's unfinished runs, and the number of finished runs on the error
    stream.
    """
    from dml_train.studies.runs import list_commands

    commands = list_commands(jobs)
    for command in commands:
        click.echo(command)
    finished = len({job.folder for job in jobs}) - len(commands)
    click.echo(f"{len(commands)} runs to do, {finished} finished", err=True)


def error_message(error: DmlError | Interrupted, command: click.Command | None = None) -> str:
    """Return the error's message, followed by the options of `dml` that fix it.

    If the failed `command` supports the option `--resume`, name this option, otherwise the option
    of `dml train`.
    """
    resumes = command is not None and any(
        parameter.name == "resume" for parameter in command.params
    )
    resume = f"dml {command.name if command and resumes else 'train'} --resume"
    options = [{"resume": resume, **_OPTIONS}.get(name, f"--{name}") for name in error.arguments]
    return f"{error} ({', '.join(options)})" if options else str(error)


def printable(name: str) -> str:
    """Escape the characters of a name that a terminal would interpret or can't encode."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def check_new(*paths: Path | None) -> None:
    """Raise a `DmlError` if a file already exists, or would be in a missing folder."""
    for path in paths:
        if path and path.exists():
            raise DmlError(f"{path} exists already; nothing was touched. Choose another name")
        if path and not path.parent.is_dir():
            raise DmlError(f"{path.parent} is not a folder; create it first")
