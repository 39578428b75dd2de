"""What several commands take or refuse alike."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from dml_core import DmlError

CONSOLE = Console(stderr=True)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
SET = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key of the recipe, as loss.scale=32, or a whole table, as 'loss={name=\"arc-face\"}'; repeatable.",
)


def refuse_existing(*paths: Path | None) -> None:
    """Refuse to write where something is already, or in a folder that isn't there."""
    for path in paths:
        if path and path.exists():
            raise DmlError(f"{path} exists already; nothing was touched. Choose another name")
        if path and not path.parent.is_dir():
            raise DmlError(f"{path.parent} is not a folder; make it first")
