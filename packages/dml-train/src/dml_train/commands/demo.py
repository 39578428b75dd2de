"""`dml demo`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_train.commands.options import FOLDER


@click.command()
@click.option("--out", type=FOLDER, default=Path("runs/demo"), show_default=True, help="The run's folder.")
def demo(out: Path) -> None:
    """Train on rendered characters for three minutes, and compare what was learned with raw pixels."""
    from dml_train.demo import run_demo

    run_demo(out)
