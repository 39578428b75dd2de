"""The `dml` command: thin commands over `dml_train`, and those that plugins add.

A `DmlError` becomes its message on the error stream and exit code 2; a run that was asked to stop exits with 128
plus the signal's number.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, cast

import click
from rich.console import Console

from dml_core import KINDS, DmlError, plugins, registry
from dml_train import __version__, launch, recipe
from dml_train.distributed import first_process
from dml_train.embedding import Embedded, evaluate, pack_codes
from dml_train.interruption import Interrupted
from dml_train.run_folder import RunFolder, read_array, write_array, write_json
from dml_train.training import read_recipe, reopen
from dml_train.training import train as run_training

_CONSOLE = Console(stderr=True)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


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
        except Interrupted as error:
            if first_process():
                click.echo(str(error), err=True)
            ctx.exit(128 + error.number)

    def _of_plugins(self, ctx: click.Context) -> dict[str, click.Command]:
        if (collected := ctx.meta.get(__name__)) is not None:
            return cast("dict[str, click.Command]", collected)
        found: dict[str, click.Command] = {}
        source = plugins()
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
def main() -> None:
    """Deep metric learning: train an embedding, search with it, and measure it exactly."""


@main.command()
@click.argument("source", metavar="RECIPE")
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set a key: --set loss.scale=32."
)
@click.option("--out", type=_FOLDER, required=True, help="The run's folder; must not exist yet.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out, if there is one.")
@click.option("--force", is_flag=True, help="Resume although the recipe differs from the run's.")
@click.option(
    "--nproc", type=click.IntRange(min=1), default=1, help="Ranks on this machine that train together."
)
def train(
    source: str, assignments: tuple[str, ...], out: Path, resume: bool, force: bool, nproc: int
) -> None:
    """Train by RECIPE: a TOML file, or the name of a recipe that comes with dml.

    Started by torchrun (torchrun ... -m dml_train train RECIPE --out DIR), the ranks train together, too.
    """
    from dml_train.report import write_report

    checked = recipe.load(source, assignments, registry())
    if nproc > 1:
        flags = [flag for flag, given in (("--resume", resume), ("--force", force)) if given]
        settings = [part for assignment in assignments for part in ("--set", assignment)]
        launch.launch(nproc, ["train", source, *settings, "--out", str(out), *flags], out)
        return
    folder = run_training(checked, out, resume=resume, force=force, registry=registry())
    if first_process():
        click.echo(f"{folder.evaluation}\n{write_report(folder.path)}")


@main.command("eval")
@click.argument("source", metavar="RUN|EMBEDDINGS.npy", type=click.Path(path_type=Path))
@click.argument("labels", metavar="[LABELS.npy]", type=_FILE, required=False)
@click.option("--gallery", type=_FILE, help="Embeddings to search in; default: the queries themselves.")
@click.option("--gallery-labels", type=_FILE, help="Their labels.")
@click.option("--evaluator", metavar="NAME", help="Default: the run's, or exact.")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="The evaluator's options.")
@click.option("--out", type=_FILE, help="Also write the figures to a new JSON file.")
def evaluate_command(
    source: Path,
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    evaluator: str | None,
    assignments: tuple[str, ...],
    out: Path | None,
) -> None:
    """Measure a run's test split, or any embeddings with their labels."""
    table: dict[str, Any] = {"name": evaluator or "exact"}
    seed = 0
    if source.is_dir():
        if labels or gallery or gallery_labels:
            raise DmlError(
                f"{source} is a run's folder, which has labels and gallery of its own; give nothing else"
            )
        folder = RunFolder.open(source)
        of_run = read_recipe(folder, registry())
        seed = of_run.training.seed
        if evaluator in (None, of_run.evaluation.name):
            table = of_run.evaluation.component()
        embedded = (
            _stored(folder)
            if folder.evaluation.is_file()
            else reopen(source, registry())[1].embed_test(_CONSOLE)
        )
    else:
        if labels is None:
            raise DmlError(f"{source} is not a run's folder; to measure embeddings, give their labels, too")
        if (gallery is None) != (gallery_labels is None):
            raise DmlError("--gallery and --gallery-labels belong together; only one of them was given")
        embedded = _read(source, labels, gallery, gallery_labels)
    for assignment in assignments:
        recipe.assign(table, assignment)
    _refuse_existing(out)
    result = evaluate(registry().build("evaluators", table, {"seed": seed}), embedded)
    click.echo(str(result))
    if out:
        write_json(out, result.to_dict())


@main.command()
@click.argument("run", type=_FOLDER)
@click.option("--split", type=click.Choice(["test", "gallery", "train"]), default="test", show_default=True)
@click.option("--out", type=_FILE, required=True, help="A new .npy file: (N, dim) float32.")
@click.option("--labels", type=_FILE, help="Also write the labels to a new .npy file: (N,) int64.")
@click.option(
    "--codes", is_flag=True, help="Write binary codes, a bit a dimension: (N, ceil(dim / 8)) uint8."
)
def embed(run: Path, split: str, out: Path, labels: Path | None, codes: bool) -> None:
    """Embed a split of a run's data set with the run's newest weights."""
    _refuse_existing(out, labels)
    _, experiment = reopen(run, registry())
    part = getattr(experiment.dataset, split)
    if part is None:
        name = experiment.recipe.dataset["name"]
        raise DmlError(
            f"the data set {name!r} has no gallery of its own: its test split is searched in itself"
        )
    embeddings = experiment.embed(part, _CONSOLE)
    write_array(out, pack_codes(embeddings) if codes else embeddings)
    if labels:
        write_array(labels, part.labels)


@main.command()
@click.argument("run", type=_FOLDER)
def report(run: Path) -> None:
    """Write a run's report.html anew from what is in its folder."""
    from dml_train.report import write_report

    click.echo(write_report(RunFolder.open(run).path))


@main.command()
@click.option("--out", type=_FOLDER, default=Path("runs/demo"), show_default=True, help="The run's folder.")
def demo(out: Path) -> None:
    """Train on rendered characters for three minutes, and compare what was learned with raw pixels."""
    from dml_train.demo import run_demo

    run_demo(out)


@main.command("plugins")
def list_plugins() -> None:
    """List what every plugin provides, and why any failed to load."""
    source = plugins()
    brought: dict[str, list[str]] = {}
    for kind in KINDS:
        for name, entry in registry().entries(kind).items():
            line = f"  {kind:<10}  {name}  {entry.component.summary}"
            brought.setdefault(entry.provider.entry_point, []).append(line)
    for provider in source.providers:
        click.echo(f"{provider}  ({provider.entry_point})")
        click.echo("\n".join(brought.get(provider.entry_point, ["  no components"])))
    for failure in source.failures:
        click.echo(f"FAILED  {failure}")


def _stored(folder: RunFolder) -> Embedded:
    gallery, gallery_labels = folder.embeddings("gallery"), folder.labels("gallery")
    apart = gallery.exists()
    return _read(
        folder.embeddings(), folder.labels(), gallery if apart else None, gallery_labels if apart else None
    )


def _read(queries: Path, labels: Path, gallery: Path | None, gallery_labels: Path | None) -> Embedded:
    return Embedded(
        read_array(queries),
        read_array(labels),
        read_array(gallery) if gallery else None,
        read_array(gallery_labels) if gallery_labels else None,
    )


def _refuse_existing(*paths: Path | None) -> None:
    for path in paths:
        if path and path.exists():
            raise DmlError(f"{path} exists already; nothing was touched. Choose another name")
        if path and not path.parent.is_dir():
            raise DmlError(f"{path.parent} is not a folder; make it first")
