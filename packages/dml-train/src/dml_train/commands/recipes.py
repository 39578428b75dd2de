"""`dml recipes`."""

from __future__ import annotations

import click

from dml_train.recipe.bundled import bundled, bundled_text, summary


@click.command()
@click.argument("name", required=False)
def recipes(name: str | None) -> None:
    """List the recipes that come with dml, or print one by its NAME."""
    if name is not None:
        click.echo(bundled_text(name), nl=False)
        return
    names = bundled()
    width = max(map(len, names))
    for each in names:
        click.echo(f"{each:<{width}}  {summary(bundled_text(each))}")
