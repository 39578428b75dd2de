"""`dml demo`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_train.commands.options import FOLDER


@click.command()
@click.option(
    "--out", type=FOLDER, default=Path("runs/demo"), show_default=True, help="The run's folder."
)
@click.option(
    "--resume", is_flag=True, help="Resume an interrupted demo in --out, if there is one."
)
def demo(out: Path, resume: bool) -> None:
    """Train on rendered characters, in minutes.

    Print the metrics of the trained network, raw pixels, and the untrained network for comparison,
    on characters that training never saw.
    """
    from dml_train.demo import run_demo

    run_demo(out, resume=resume)
