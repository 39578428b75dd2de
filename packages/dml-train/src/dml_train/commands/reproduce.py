"""`dml reproduce`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import Registry
from dml_train.commands.engine import Cluster, engine_options, study_arguments
from dml_train.commands.options import FOLDER, JOBS, LIST_COMMANDS, echo_commands
from dml_train.processes.limits import MOST_RUNS


@click.command()
@click.argument("tables", metavar="[PAPER[/TABLE]]...", nargs=-1)
@click.option(
    "--data",
    type=FOLDER,
    help="Folder of the papers' data sets; if omitted, all tables run on glyphs.",
)
@click.option(
    "--seeds", type=click.IntRange(1, MOST_RUNS), default=1, show_default=True, help="Runs per row."
)
@JOBS
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key in all recipes; repeatable.",
)
@click.option(
    "--out",
    type=FOLDER,
    default=Path("runs/reproduce"),
    show_default=True,
    help="Folder of the runs and pages.",
)
@engine_options
@LIST_COMMANDS
@click.pass_context
def reproduce(
    context: click.Context,
    tables: tuple[str, ...],
    data: Path | None,
    seeds: int,
    jobs: int | None,
    overrides: tuple[str, ...],
    out: Path,
    cluster: Cluster,
    list_commands: bool,
) -> None:
    """Reproduce the papers' tables.

    Use ice/table-2 for one table, or ice for all tables of a paper; without a name, list all
    tables. Pages in --out compare measured with published metrics. Repeat the command to resume;
    finished runs in --out are kept.
    """
    from dml_train.studies.reproduce.paper import papers
    from dml_train.studies.reproduce.run import plan_tables
    from dml_train.studies.reproduce.run import reproduce as run

    known = papers()
    if not tables:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        listing = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("table", "rows", "on", "what it varies"):
            listing.add_column(column, no_wrap=column == "table")
        for name, paper in known.items():
            for key, table in paper.tables.items():
                on = ", ".join(table.datasets()) or "only published figures"
                listing.add_row(f"{name}/{key}", str(len(table.rows)), on, escape(table.title))
        Console().print(listing)
        return
    registry: Registry = context.obj
    if list_commands:
        planned = plan_tables(
            tables, out, data=data, seeds=seeds, overrides=overrides, registry=registry
        )
        for text in planned.left_out:
            click.echo(f"left out: {text}", err=True)
        echo_commands(planned.jobs())
        return
    with study_arguments(cluster, registry, out, jobs) as shared:
        found = run(tables, out, data=data, seeds=seeds, overrides=overrides, **shared)
    for text in found.left_out:
        click.echo(f"left out: {text}", err=True)
    if found.left_out and data is None:
        click.echo("give the data sets' folder as --data", err=True)
    for page in found.pages:
        click.echo(page.read_text(encoding="utf-8"))
        click.echo(page)
    if found.faults:
        click.echo(f"{len(found.faults)} runs failed; the pages name them", err=True)
        context.exit(1)
