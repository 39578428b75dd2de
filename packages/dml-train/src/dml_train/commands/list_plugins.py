"""`dml plugins`."""

from __future__ import annotations

import click

from dml_core import KINDS, Registry


@click.command("plugins")
@click.pass_obj
def list_plugins(registry: Registry) -> None:
    """List the components of each plugin, and the plugins that failed to load."""
    source = registry.plugins
    provided: dict[str, list[str]] = {}
    for kind in KINDS:
        for name, entry in registry.entries(kind).items():
            line = f"  {kind:<10}  {name}  {entry.component.summary}"
            provided.setdefault(entry.provider.entry_point, []).append(line)
    for provider in source.providers:
        click.echo(f"{provider}  ({provider.entry_point})")
        click.echo("\n".join(provided.get(provider.entry_point, ["  no components"])))
    for failure in source.failures:
        click.echo(f"FAILED  {failure}")
