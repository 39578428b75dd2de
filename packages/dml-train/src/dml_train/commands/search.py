"""`dml search`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import (
    FILE,
    FOLDER,
    ON_BAD_IMAGE,
    STEP,
    check_new,
    error_console,
    printable,
)

if TYPE_CHECKING:
    from dml_train.trained.search import Gallery, SearchResult


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("queries", metavar="QUERY...", type=FILE, nargs=-1, required=True)
@click.option(
    "--gallery",
    type=FOLDER,
    help="Folder of images to search; default: the run's evaluated images.",
)
@click.option(
    "--index", type=FILE, help="Instead of --gallery: a file that 'dml embed RUN FOLDER' wrote."
)
@click.option(
    "-k",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of images to find per query.",
)
@click.option(
    "--codes", is_flag=True, help="Compare binary codes by Hamming distance instead of embeddings."
)
@click.option("--html", type=FILE, help="Also write a page of the images to a new HTML file.")
@ON_BAD_IMAGE
@STEP
@click.pass_obj
def search(
    registry: Registry,
    run: Path,
    queries: tuple[Path, ...],
    gallery: Path | None,
    index: Path | None,
    k: int,
    codes: bool,
    html: Path | None,
    on_bad_image: str,
    step: int | None,
) -> None:
    """Find the images nearest to each QUERY, exactly.

    Compare images by a run's embedding, and print the nearest images with scores. If a query is in
    the gallery, it is excluded from the results.
    """
    if gallery is not None and index is not None:
        raise DmlError("both --gallery and --index were given; expected one of them")
    check_new(html)
    if (missing := next((query for query in queries if not query.is_file()), None)) is not None:
        raise DmlError(f"the image {missing} doesn't exist")
    from dml_train.trained.model import open_model
    from dml_train.trained.search import Gallery
    from dml_train.trained.search import search as find_nearest

    model = open_model(run, registry, step=step)
    if gallery is not None:
        skip, workers = on_bad_image == "skip", model.recipe.training.workers
        searched = Gallery.of_folder(
            model, gallery, skip=skip, workers=workers, console=error_console()
        )
    else:
        searched = (
            Gallery.of_run(model, registry) if index is None else Gallery.of_index(model, index)
        )
    results = find_nearest(model, searched, queries, k=k, codes=codes, registry=registry)
    if searched.note:
        click.echo(searched.note, err=True)
    for result in results:
        _print(result, searched)
    if html is not None:
        from dml_train.report.search_page import write_search_page

        click.echo(write_search_page(model, searched, results, html))


def _print(result: SearchResult, gallery: Gallery) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", justify="right")
    table.add_column(result.score, justify="right")
    table.add_column(f"nearest to {printable(str(result.query))}", overflow="fold")
    for rank, (index, value) in enumerate(zip(result.indices, result.scores), start=1):
        shown = f"{value}" if isinstance(value, int) else f"{value:.4f}"
        table.add_row(str(rank), shown, printable(gallery.names[index]))
    # Don't limit the width, since users can't copy a path that is cut or folded.
    Console(width=10_000, markup=False, highlight=False, soft_wrap=True).print(table)
