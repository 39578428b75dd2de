"""`dml report`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import FILE, FOLDER, check_new


@click.command()
@click.argument("runs", metavar="RUN...", type=FOLDER, nargs=-1, required=True)
@click.option("--out", type=FILE, help="With several runs: a new HTML file for the comparison.")
@click.pass_obj
def report(registry: Registry, runs: tuple[Path, ...], out: Path | None) -> None:
    """Write a run's report, or a comparison of several runs.

    With one run: write report.html again from the files in the folder. With several runs: compare
    them with the first run, with metrics side by side, paired tests on the same queries, curves,
    settings that differ, and queries that only one run gets right.
    """
    from dml_train.report import write_report, write_side_by_side

    if len(runs) == 1:
        if out is not None:
            raise DmlError("the report of a single run is report.html in its folder; omit --out")
        click.echo(write_report(runs[0], registry))
        return
    if out is None:
        raise DmlError(
            f"{len(runs)} runs were given to compare; choose the page to write: --out FILE.html"
        )
    check_new(out)
    click.echo(write_side_by_side(runs, out, registry))
