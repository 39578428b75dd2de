"""The `dml` command: thin commands over `dml_train`, and those that plugins add.

A `DmlError` becomes its message on the error stream and exit code 2; a run that was asked to stop, or any command that
is by Ctrl-C, exits with 128 plus the signal's number.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import IO, Any, cast

import click

from dml_core import DmlError, plugins, registry
from dml_train import __version__
from dml_train.commands import COMMANDS
from dml_train.processes.stopping import Interrupted
from dml_train.ranks import launch
from dml_train.ranks.ranks import is_first_process


class Refusal(click.ClickException):
    """What a person can mend: a message and exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Give the message to whoever started this process."""
        launch.report(self.message)


class Dml(click.Group):
    """The command group: errors as messages, and the commands of plugins beside its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        return sorted({**self.commands, **self._of_plugins(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; plugins are asked only for what isn't a command of dml itself."""
        return self.commands.get(cmd_name) or self._of_plugins(ctx).get(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and turn what a person can mend into a message."""
        try:
            return super().invoke(ctx)
        except DmlError as error:
            raise Refusal(str(error)) from error
        except PermissionError as error:  # wherever it was: there is nothing to add
            raise Refusal(f"can't use {error.filename}: {error.strerror}") from error
        except Interrupted as error:
            if is_first_process():
                click.echo(str(error), err=True)
            ctx.exit(128 + error.number)
        except KeyboardInterrupt:
            if is_first_process():
                click.echo("stopped by Ctrl-C", err=True)
            ctx.exit(128 + signal.SIGINT)

    def _of_plugins(self, ctx: click.Context) -> dict[str, click.Command]:
        if (collected := ctx.meta.get(__name__)) is not None:
            return cast("dict[str, click.Command]", collected)
        found: dict[str, click.Command] = {}
        source = ctx.obj.plugins if ctx.obj else plugins()
        for implementation in source.manager.hook.dml_commands.get_hookimpls():
            provider = source.provider_of(implementation.plugin)
            brought = cast("Iterable[click.Command]", implementation.function())
            for command in brought:
                name = command.name or ""
                if name in self.commands or name in found:
                    raise Refusal(
                        f"{provider} adds a command {name!r}, which dml has already; "
                        "uninstall it or ask its author to rename the command"
                    )
                found[name] = command
        ctx.meta[__name__] = found
        return found


@click.group(cls=Dml, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dml")
@click.pass_context
def main(context: click.Context) -> None:
    """Deep metric learning: train an embedding, search with it, and measure it exactly."""
    context.obj = context.obj or registry()  # what the commands find components in


for command in COMMANDS:
    main.add_command(command)
