"""`dml report`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_train.commands.options import FOLDER
from dml_train.run_folder import RunFolder


@click.command()
@click.argument("run", type=FOLDER)
def report(run: Path) -> None:
    """Write a run's report.html anew from what is in its folder."""
    from dml_train.report import write_report

    click.echo(write_report(RunFolder.open(run).path))
