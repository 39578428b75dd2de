"""`dml train`."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import FOLDER, SET
from dml_train.processes.limits import MOST_PROCESSES
from dml_train.ranks.environment import is_first_process

if TYPE_CHECKING:
    from dml_train.run_folder import RunFolder


@click.command()
@click.argument("source", metavar="RECIPE")
@SET
@click.option(
    "--out", type=FOLDER, help="The run's folder; must be new. Required, except with --check."
)
@click.option(
    "--check",
    is_flag=True,
    help="Only run the checks before the first step, and don't start a run.",
)
@click.option(
    "--resume", is_flag=True, help="Resume from the newest checkpoint in --out, if there is one."
)
@click.option("--force", is_flag=True, help="Resume even if the recipe or the data have changed.")
@click.option(
    "--nproc",
    type=click.IntRange(1, MOST_PROCESSES),
    default=1,
    help="Number of ranks on this machine.",
)
@click.option(
    "--report/--no-report", default=True, show_default=True, help="Write report.html at the end."
)
@click.pass_obj
def train(
    registry: Registry,
    source: str,
    overrides: tuple[str, ...],
    out: Path | None,
    check: bool,
    resume: bool,
    force: bool,
    nproc: int,
    report: bool,
) -> None:
    """Train RECIPE: a TOML file, or a bundled recipe's name.

    You can also start ranks with torchrun: torchrun ... -m dml_train train RECIPE --out DIR.
    """
    if out is None and not check:
        raise click.MissingParameter(
            "The run's folder; must be new, or --check", None, None, "'--out'", "option"
        )
    if check and nproc > 1:
        raise DmlError(f"--check builds the recipe in one process; omit --nproc {nproc}")
    from dml_train.recipe.loading import load_recipe

    if sys.stderr.isatty() and is_first_process():
        # The check imports the components and torch, which takes seconds.
        click.echo("checking the recipe", err=True)
    recipe = load_recipe(source, overrides, registry)
    if check or out is None:
        from dml_train.training.run import check_recipe

        check_recipe(recipe, out, resume=resume, force=force, registry=registry)
        if is_first_process():
            click.echo("the recipe is ready to train; no run was started")
        return
    if nproc > 1:
        from dml_train.ranks import launch

        given = (("--resume", resume), ("--force", force), ("--no-report", not report))
        flags = [flag for flag, is_given in given if is_given]
        settings = [part for override in overrides for part in ("--set", override)]
        launch.launch(
            nproc,
            ["train", source, *settings, "--out", str(out), *flags],
            out,
            recipe.training.timeout,
        )
        return
    from dml_train.extras import MissingExtra
    from dml_train.studies.runs import measure_seconds
    from dml_train.training.run import train as run_training

    # Measure the run's time, which a study that listed this command reads; ranks don't measure it.
    with nullcontext() if "RANK" in os.environ else measure_seconds(out):
        folder = run_training(recipe, out, resume=resume, force=force, registry=registry)
    if not is_first_process():
        return
    _print_metrics(folder)
    click.echo(folder.evaluation)
    if report:
        try:
            from dml_train.report import write_report

            click.echo(write_report(folder.path, registry))
        except MissingExtra as error:
            click.echo(f"can't write the report: {error}, then: dml report {out}", err=True)


def _print_metrics(folder: RunFolder) -> None:
    """Print the metrics of a run and of the baselines."""
    from rich.console import Console
    from rich.table import Table

    from dml_train.measure.listing import list_metrics
    from dml_train.training.baselines import Baselines

    baselines = Baselines.read(folder)
    columns = baselines.by_name()
    table = Table("", "trained", *columns, box=None, pad_edge=False, show_header=bool(columns))
    for metric in list_metrics(folder.read_evaluation()):
        values = [metric.value, *(values.get(metric.name) for values in columns.values())]
        table.add_row(metric.title, *("" if value is None else f"{value:.4f}" for value in values))
    Console(markup=False, highlight=False).print(table)
    if baselines.omitted:
        click.echo(f"baselines were not measured: {baselines.omitted}", err=True)
