"""`dml demo`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_train.commands.options import FOLDER


@click.command()
@click.option("--out", type=FOLDER, default=Path("runs/demo"), show_default=True, help="The run's folder.")
def demo(out: Path) -> None:
    """Learn to tell rendered characters apart, in minutes.

    Prints what was learned beside raw pixels and the untrained network, on characters that training never saw.
    """
    from dml_train.demo import run_demo

    run_demo(out)
