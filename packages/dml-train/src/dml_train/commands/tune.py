"""`dml tune`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError, Registry
from dml_train.commands.engine import Cluster, engine_options, study_arguments
from dml_train.commands.options import FILE, FOLDER, JOBS, LIST_COMMANDS, SET, echo_commands
from dml_train.processes.limits import MOST_RUNS


@click.command()
@click.argument("source", metavar="RECIPE")
@click.option(
    "--range",
    "ranges",
    metavar="KEY=LOW:HIGH[:log]",
    multiple=True,
    help="Vary a number, for example optimizer.lr=1e-4:1e-2:log; repeatable.",
)
@click.option(
    "--choice",
    "choices",
    metavar="KEY=[A,B]",
    multiple=True,
    help="Choose a value, for example sampler.images_per_class=[2,4]; repeatable.",
)
@click.option("--space", type=FILE, help="A TOML file of ranges and choices.")
@click.option(
    "--trials", type=click.IntRange(min=1), required=True, help="Total number of settings to try."
)
@click.option(
    "--folds",
    type=click.IntRange(2, MOST_RUNS),
    help=(
        "Number of folds of the training classes, each held out in turn; default: hold out as in "
        "the recipe."
    ),
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the choices."
)
@JOBS
@SET
@click.option("--out", type=FOLDER, required=True, help="Folder of the search: trials and results.")
@engine_options
@LIST_COMMANDS
@click.pass_obj
def tune(
    registry: Registry,
    source: str,
    ranges: tuple[str, ...],
    choices: tuple[str, ...],
    space: Path | None,
    trials: int,
    folds: int | None,
    seed: int,
    jobs: int | None,
    overrides: tuple[str, ...],
    out: Path,
    cluster: Cluster,
    list_commands: bool,
) -> None:
    """Search settings of RECIPE on held-out training classes.

    The test classes stay unseen. Repeat the command to resume an interrupted search, or with more
    --trials to extend a finished search. To search on several machines, run the command on each at
    the same time, with --out in a shared folder. Needs optuna: pip install 'dml-train[tune]'.
    """
    from dml_train.recipe.loading import read
    from dml_train.studies.tuning.run import list_trainings, markdown
    from dml_train.studies.tuning.run import tune as run_tuning
    from dml_train.studies.tuning.search import SettingsSearch, read_choice, read_range, read_space

    varied = [
        *map(read_range, ranges),
        *map(read_choice, choices),
        *(read_space(space).items() if space else ()),
    ]
    if twice := [key for key, _ in varied if [k for k, _ in varied].count(key) > 1]:
        raise DmlError(
            f"{twice[0]!r} varies twice; expected a single --range, --choice or table per key"
        )
    if list_commands:
        search = SettingsSearch(read(source, overrides)[0], dict(varied), folds, seed, registry)
        echo_commands(list_trainings(search, out, trials))
        return
    with study_arguments(cluster, registry, out, jobs) as shared:
        result = run_tuning(
            source,
            dict(varied),
            out,
            trials=trials,
            folds=folds,
            seed=seed,
            overrides=overrides,
            **shared,
        )
    if (others := trials - len(result.trials)) > 0:
        click.echo(
            f"{others} of the {trials} trials still train on other machines; the last machine to "
            "end counts all trials",
            err=True,
        )
    click.echo(markdown(result.search, result.trials, Path(source).stem))
    for path in result.pages:
        click.echo(path)
