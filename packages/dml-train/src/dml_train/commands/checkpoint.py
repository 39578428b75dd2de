"""`dml checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dml_train.commands.options import FOLDER

if TYPE_CHECKING:
    from dml_train.recipe.tables import Form


@click.command()
@click.argument("run", metavar="RUN", type=FOLDER)
@click.option(
    "--form",
    type=click.Choice(["whole", "parts"]),
    required=True,
    help="whole: the state is one file. parts: class weights are in files apart, as ranks write them.",
)
def checkpoint(run: Path, form: Form) -> None:
    """Convert a run's checkpoints to another form.

    Any number of ranks loads the same bits from either form. A run writes in parts with checkpoints.form = "parts".
    """
    from dml_train.training.conversion import convert_checkpoints

    converted = convert_checkpoints(run, form)
    for path in converted:
        click.echo(path)
    if not converted:
        click.echo(f"all checkpoints have the form {form}", err=True)
