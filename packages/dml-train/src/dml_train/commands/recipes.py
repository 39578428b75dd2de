"""`dml recipes`."""

from __future__ import annotations

import click

from dml_core import Registry
from dml_train.recipe.bundled import bundled_recipes, bundled_text, leading_comment, summary


@click.command()
@click.argument("name", required=False)
@click.pass_obj
def recipes(registry: Registry, name: str | None) -> None:
    """List the bundled recipes, or print one, by its NAME or a path.

    A recipe that extends another is printed resolved: with all its parents' keys, and every default filled in.
    """
    if name is None:
        names = bundled_recipes()
        width = max(map(len, names))
        for each in names:
            click.echo(f"{each:<{width}}  {summary(bundled_text(each))}")
        return
    from dml_train.recipe.extending import read_chain
    from dml_train.recipe.loading import load_recipe

    child, *parents = read_chain(name)
    if not parents:
        click.echo(child.text, nl=False)
        return
    comment = leading_comment(child.text)
    comment += f"# Resolved; it extends {', '.join(parent.name for parent in parents)}.\n"
    click.echo(f"{comment}\n{load_recipe(name, (), registry).to_toml()}", nl=False)
