"""`dml protocol`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import Registry
from dml_train.commands.engine import Cluster, engine_options, study_arguments
from dml_train.commands.options import FOLDER, JOBS, LIST_COMMANDS, SET, echo_commands
from dml_train.processes.limits import MOST_RUNS


@click.group()
def protocol() -> None:
    """Evaluate a recipe by a protocol with several runs."""


@protocol.command()
@click.argument("source", metavar="RECIPE")
@SET
@click.option("--out", type=FOLDER, required=True, help="Folder of the runs and results.")
@click.option(
    "--runs",
    type=click.IntRange(1, MOST_RUNS),
    default=1,
    show_default=True,
    help="Number of repetitions; the paper has 10.",
)
@click.option(
    "--dim",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Dimension of each model.",
)
@JOBS
@engine_options
@LIST_COMMANDS
@click.pass_obj
def mlrc(
    registry: Registry,
    source: str,
    overrides: tuple[str, ...],
    out: Path,
    runs: int,
    dim: int,
    jobs: int | None,
    cluster: Cluster,
    list_commands: bool,
) -> None:
    """Run the protocol of A Metric Learning Reality Check.

    Train four models, each with a different quarter of the training classes held out, and evaluate
    the models separately and concatenated. Repeat the command to resume after an interruption;
    finished runs in --out are kept.
    """
    from dml_train.recipe.loading import load_recipe
    from dml_train.studies.mlrc import plan_models, reality_check, write

    checked = load_recipe(source, overrides, registry)
    if list_commands:
        echo_commands(plan_models(checked, out, registry, runs=runs, dim=dim))
        return
    with study_arguments(cluster, registry, out, jobs) as shared:
        found = reality_check(checked, out, runs=runs, dim=dim, **shared)
    click.echo(found.markdown(Path(source).stem))
    for path in write(found, out, Path(source).stem):
        click.echo(path)
