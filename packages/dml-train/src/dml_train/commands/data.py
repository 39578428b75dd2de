"""`dml data check` and `dml data fetch`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_train.commands.options import FOLDER, error_console

# Repeated here, since the data sets' modules take seconds to import; a test compares the names.
_NAME = click.argument("name", type=click.Choice(["cub", "cars196", "sop", "in-shop"]))
_ROOT = click.option("--root", type=FOLDER, required=True, help="The data set's folder, or its parent.")


@click.group()
def data() -> None:
    """Download and check the published data sets."""


@data.command()
@_NAME
@_ROOT
@click.option("--decode", is_flag=True, help="Also decode every image, and list those that fail.")
@click.pass_context
def check(context: click.Context, name: str, root: Path, decode: bool) -> None:
    """Compare a data set's counts with the published ones.

    Exits with 0 if the data set is complete, with 1 if it is incomplete, and with 2 if it is missing.
    """
    from dml_train.data import check_dataset

    if not check_dataset(name, root, decode=decode, report=click.echo):
        context.exit(1)


@data.command()
@_NAME
@_ROOT
@click.pass_context
def fetch(context: click.Context, name: str, root: Path) -> None:
    """Download, unpack and check a data set.

    It comes from its owners' servers. An interrupted download resumes, and archives already in the folder are used.
    Exits with 0 if the data set is complete, with 1 if it is incomplete, and with 2 if it can't be downloaded.
    """
    from dml_train.data import check_dataset, fetch_dataset

    fetch_dataset(name, root, console=error_console(), report=lambda text: click.echo(text, err=True))
    if not check_dataset(name, root, report=click.echo):
        context.exit(1)
