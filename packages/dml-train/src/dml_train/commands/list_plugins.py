"""`dml plugins`."""

from __future__ import annotations

import click

from dml_core import CONTEXT, KINDS, SINGULAR, Kind, Option, Registry, UnknownName
from dml_core.registry import suggest


@click.command("plugins", short_help="List all components, those of a kind, or the options of one.")
@click.argument("name", required=False)
@click.pass_obj
def list_plugins(registry: Registry, name: str | None) -> None:
    """List the components of each plugin, and plugins that failed to load.

    If NAME is a kind, such as losses, list the components of this kind; if it is a component,
    describe the options.
    """
    kinds = [kind for kind in KINDS if name in (None, kind)]
    if name is not None and not kinds:
        _describe(registry, name)
        return
    provided: dict[str, list[str]] = {}
    for kind in kinds:
        for each, entry in registry.entries(kind).items():
            line = f"  {kind:<10}  {each}  {entry.component.summary}"
            provided.setdefault(entry.provider.entry_point, []).append(line)
    for provider in registry.plugins.providers:
        lines = provided.get(provider.entry_point, [] if name else ["  no components"])
        if lines:
            click.echo("\n".join([f"{provider}  ({provider.entry_point})", *lines]))
    for failure in registry.plugins.failures:
        click.echo(f"FAILED  {failure}")


def _describe(registry: Registry, name: str) -> None:
    """Print the components with this name: provider, source, and the types and defaults of the
    options.
    """
    found = [
        (kind, registry.entries(kind)[name]) for kind in KINDS if name in registry.entries(kind)
    ]
    if not found:
        known = [each for kind in KINDS for each in registry.entries(kind)]
        raise UnknownName(
            (
                f"no plugin provides a component {name!r}{suggest(name, known)} 'dml plugins' "
                "lists them all"
            )
            + registry.plugins.describe_failures()
        )
    for kind, entry in found:
        component = entry.component
        click.echo(f"{SINGULAR[kind]} {name}: {component.summary}")
        click.echo(f"  of {entry.provider} ({entry.provider.entry_point})")
        if component.source:
            click.echo(f"  source: {component.source}")
        rows = [
            (option.name, option.expected, _default(kind, option)) for option in component.options
        ]
        name_width, type_width = (
            max((len(row[column]) for row in rows), default=0) for column in (0, 1)
        )
        for option, expected, default in rows:
            click.echo(f"  {option:<{name_width}}  {expected:<{type_width}}  {default}")
        if not rows:
            click.echo("  no options")
        elif component.takes_any_option:
            click.echo("  and any other key")


def _default(kind: Kind, option: Option) -> str:
    if option.name in CONTEXT[kind]:
        return "given by the run"
    return "required" if option.required else f"default: {option.default!r}"
