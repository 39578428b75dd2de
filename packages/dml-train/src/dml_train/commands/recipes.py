"""`dml recipes`."""

from __future__ import annotations

from collections.abc import Iterable

import click

from dml_core import Registry
from dml_train.recipe.bundled import (
    PAPERS,
    PRETRAINED,
    bundled_recipes,
    bundled_text,
    leading_comment,
    summary,
)


@click.command()
@click.argument("name", required=False)
@click.option("--keys", is_flag=True, help="List the keys of a recipe's tables with defaults.")
@click.pass_obj
def recipes(registry: Registry, name: str | None, keys: bool) -> None:
    """List the bundled recipes; or print one, by NAME or path.

    If NAME is a paper or group in the list, list the recipes of this paper or group. If a recipe
    extends a different recipe, print it resolved: with the keys of all parents, and with all
    defaults.
    """
    if keys:
        from dml_train.recipe.tables import describe_keys

        click.echo(describe_keys(), nl=False)
        return
    if name is None:
        _list_all()
        return
    if name in PAPERS or name == PRETRAINED:
        _list(each for each in bundled_recipes() if each.startswith(f"{name}/"))
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


def _list_all() -> None:
    """List the recipes that fit any data, and the papers with the number of recipes."""
    names = bundled_recipes()
    small = [name for name in names if name.endswith("/glyphs") or name in ("demo", "glyphs-tiny")]
    click.echo("a folder of your images")
    _list((name for name in names if "/" not in name and name not in small), "  ")
    click.echo("\non rendered characters, without a download")
    _list(sorted(small, key=lambda name: ("/" in name, name)), "  ")
    count = {
        group: sum(name.startswith(f"{group}/") for name in names)
        for group in (*PAPERS, PRETRAINED)
    }
    click.echo(
        f"\nfrom learned features, which 'dml recipes {PRETRAINED}' lists\n"
        f"  {PRETRAINED}  {count[PRETRAINED]} recipes  EfficientNet-Lite0 on game sprites and "
        "icons; DINOv2, DINOv3, SigLIP, CLIP\n\nthe papers' recipes, which 'dml recipes PAPER' "
        "lists"
    )
    width = max(map(len, PAPERS))
    for paper, title in PAPERS.items():
        click.echo(f"  {paper:<{width}}  {count[paper]:>2} recipes  {title}")


def _list(names: Iterable[str], indent: str = "") -> None:
    listed = list(names)
    width = max(map(len, listed))
    for name in listed:
        click.echo(f"{indent}{name:<{width}}  {summary(bundled_text(name))}")
