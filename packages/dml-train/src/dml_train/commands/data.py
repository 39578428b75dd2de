"""`dml data check` and `dml data fetch`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_train.commands.options import CONSOLE, FOLDER

# The names stand here, too, since the data sets' modules take seconds to load; a test compares them.
_NAME = click.argument("name", type=click.Choice(["cub", "cars196", "sop", "in-shop"]))
_ROOT = click.option(
    "--root", type=FOLDER, required=True, help="The data set's folder, or the one that holds it."
)


@click.group()
def data() -> None:
    """Get the published data sets, and check that they are whole."""


@data.command()
@_NAME
@_ROOT
@click.option("--decode", is_flag=True, help="Decode every image, too, and name those that can't be.")
@click.pass_context
def check(context: click.Context, name: str, root: Path, decode: bool) -> None:
    """Count a data set against its published figures.

    Exits with 0 if all are there, with 1 if the data set is there but not whole, and with 2 if it isn't there.
    """
    from dml_train.data import OFFICIAL
    from dml_train.data.published.checking import check_complete

    if not check_complete(OFFICIAL[name], root, decode=decode, report=click.echo):
        context.exit(1)


@data.command()
@_NAME
@_ROOT
@click.pass_context
def fetch(context: click.Context, name: str, root: Path) -> None:
    """Download a data set, unpack it and count it.

    It comes from where its owners have it. A download goes on where it broke off. Archives that are in the folder
    already are used. Exits with 0 if the data set is whole, with 1 if what was got isn't, and with 2 if it can't be
    got.
    """
    from dml_train.data import OFFICIAL
    from dml_train.data.published.checking import check_complete
    from dml_train.data.published.fetching import fetch as fetch_official

    fetch_official(OFFICIAL[name], root, CONSOLE, lambda words: click.echo(words, err=True))
    if not check_complete(OFFICIAL[name], root, decode=False, report=click.echo):
        context.exit(1)
