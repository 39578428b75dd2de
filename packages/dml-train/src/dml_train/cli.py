"""The `dml` command: thin commands over `dml_train`, and the commands of plugins.

When a command raises a `DmlError`, the program prints the message on stderr and exits with code 2.
When a signal stops a run, or Ctrl-C stops any command, the program exits with 128 plus the signal's
number.
"""

from __future__ import annotations

import signal
from typing import IO, Any, cast

import click

from dml_core import DmlError, Plugins, nearest, plugins, registry
from dml_train import __version__
from dml_train.commands import COMMANDS
from dml_train.commands.options import error_message
from dml_train.processes.stopping import Interrupted
from dml_train.ranks.environment import is_first_process, report_error

# Descriptions of missing arguments, since click supports help texts only for options.
_ARGUMENTS = {
    "RECIPE": "A TOML file, or a name that 'dml recipes' lists",
    "RUN": "The folder that 'dml train' wrote (--out)",
    "QUERY": "An image file",
}


class UserError(click.ClickException):
    """A mistake that the user can correct; the program prints the message and exits with code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Report the message to the launcher of this rank, or on the error stream."""
        report_error(self.message)


class Dml(click.Group):
    """The command group, which prints errors as messages and includes the commands of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List all commands, sorted by name."""
        return sorted({**self.commands, **self._plugin_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name; load plugins only if dml doesn't define such a
        command.
        """
        return self.commands.get(cmd_name) or self._plugin_commands(ctx).get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if it doesn't exist, suggest a name, and list plugins that failed to
        load.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = self.list_commands(ctx)
            message = f"no command {args[0]!r}{nearest(args[0], known)} known: {', '.join(known)}"
            raise click.UsageError(message + self._plugins(ctx).describe_failures(), ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn the user's errors into messages."""
        try:
            return super().invoke(ctx)
        except click.MissingParameter as error:
            described = error.message or _describe_missing(error.param)
            raise click.MissingParameter(
                described, error.ctx, error.param, error.param_hint, error.param_type
            ) from error
        except DmlError as error:
            raise UserError(
                error_message(error, self.commands.get(ctx.invoked_subcommand or ""))
            ) from error
        except OSError as error:  # an I/O error at any path: the OS message is clear enough
            if error.filename is None:
                raise
            raise UserError(f"can't use {error.filename}: {error.strerror}") from error
        except Interrupted as error:
            if is_first_process():
                click.echo(
                    error_message(error, self.commands.get(ctx.invoked_subcommand or "")), err=True
                )
            ctx.exit(128 + error.signal_number)
        except KeyboardInterrupt:
            if is_first_process():
                click.echo("stopped by Ctrl-C", err=True)
            ctx.exit(128 + signal.SIGINT)

    def _plugins(self, ctx: click.Context) -> Plugins:
        return ctx.obj.plugins if ctx.obj else plugins()

    def _plugin_commands(self, ctx: click.Context) -> dict[str, click.Command]:
        if (collected := ctx.meta.get(__name__)) is not None:
            return cast("dict[str, click.Command]", collected)
        found: dict[str, click.Command] = {}
        source = self._plugins(ctx)
        for command, provider in source.collect(
            "dml_commands", click.Command, "an iterable of click.Command"
        ):
            name = command.name or ""
            if name in self.commands or name in found:
                raise UserError(
                    f"{provider} adds a command {name!r}, which dml already defines; "
                    "uninstall the plugin, or ask its author to rename the command"
                )
            found[name] = command
        ctx.meta[__name__] = found
        return found


def _describe_missing(parameter: click.Parameter | None) -> str:
    """Return the help text of a missing option or argument, to append to the error."""
    if isinstance(parameter, click.Option):
        return (parameter.help or "").removesuffix(".")  # click may add a sentence
    return _ARGUMENTS.get(
        parameter.human_readable_name.removesuffix("...") if parameter else "", ""
    )


@click.group(
    cls=Dml,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Start: 'dml demo', or 'dml train my-images --set dataset.root=FOLDER --out runs/mine' "
        "with a folder of images for each class."
    ),
)
@click.version_option(__version__, prog_name="dml")
@click.pass_context
def main(context: click.Context) -> None:
    """Deep metric learning: train an embedding, search with it, and measure it exactly."""
    context.obj = context.obj or registry()  # where commands find components


for command in COMMANDS:
    main.add_command(command)
