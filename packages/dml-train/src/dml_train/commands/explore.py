"""`dml explore`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import FILE, FOLDER, check_new, error_console


@click.command()
@click.argument("run", type=FOLDER, required=False)
@click.option("--images", type=FOLDER, help="Without RUN: a folder of images.")
@click.option("--embeddings", type=FILE, help="With --images: a .npy file with a row per image.")
@click.option(
    "--labels",
    type=FILE,
    help="With --images: a .npy file with a label per image; default: the class folders.",
)
@click.option(
    "--out",
    type=FILE,
    help="A new file for the page; default: explore.html in RUN, or next to --embeddings.",
)
@click.option("--table", type=FILE, help="Also write the items to a new Parquet file.")
@click.pass_obj
def explore(
    registry: Registry,
    run: Path | None,
    images: Path | None,
    embeddings: Path | None,
    labels: Path | None,
    out: Path | None,
    table: Path | None,
) -> None:
    """Write a page to look at an embedding in the browser.

    The page is a single file that works without a server. Without --out, an existing explore.html
    is replaced.
    """
    given = [name for name, value in (("--embeddings", embeddings), ("--labels", labels)) if value]
    if run is not None and (images is not None or given):
        raise DmlError(f"RUN has embeddings and labels; omit {', '.join(['--images', *given])}")
    if run is None and (images is None or embeddings is None):
        raise DmlError("expected a run's folder, or --images FOLDER and --embeddings FILE.npy")
    check_new(out, table)
    if table is not None and table.suffix != ".parquet":
        raise DmlError(f"--table is {table}; expected a name that ends in .parquet")
    from dml_train.report.exploration import explore_folder, explore_run
    from dml_train.report.explore_page import write_explore_page
    from dml_train.report.item_table import write_item_table

    console = error_console()
    if images is not None and embeddings is not None:
        found = explore_folder(images, embeddings, labels, registry, console)
        page = embeddings.with_name("explore.html")
    else:
        assert run is not None
        found, page = explore_run(run, registry, console), run / "explore.html"
    click.echo(write_explore_page(found, out or page, console))
    if table is not None:
        click.echo(write_item_table(found, table))
