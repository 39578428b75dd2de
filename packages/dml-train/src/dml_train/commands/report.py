"""`dml report`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import FILE, FOLDER, refuse_existing


@click.command()
@click.argument("runs", metavar="RUN...", type=FOLDER, nargs=-1, required=True)
@click.option("--out", type=FILE, help="Of several runs: a new HTML file for the page that compares them.")
@click.pass_obj
def report(registry: Registry, runs: tuple[Path, ...], out: Path | None) -> None:
    """Write a run's report, or a page that compares runs.

    A run's report.html is written anew from what is in its folder. Several runs are compared with the first:
    figures side by side, paired tests on the same queries, curves, settings that differ, and queries that only one
    of them gets right.
    """
    from dml_train.report import write_report, write_side_by_side

    if len(runs) == 1:
        if out is not None:
            raise DmlError("a single run's report goes into its folder, as report.html; leave --out away")
        click.echo(write_report(runs[0], registry))
        return
    if out is None:
        raise DmlError(f"{len(runs)} runs were given to compare; say with --out where the page goes")
    refuse_existing(out)
    click.echo(write_side_by_side(runs, out, registry))
