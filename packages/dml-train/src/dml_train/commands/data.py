"""`dml data check` and `dml data fetch`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError
from dml_train.commands.options import FILE, FOLDER, error_console, refuse_existing

# Repeated here, since the data sets' modules take seconds to import; a test compares the names.
NAMES = ("cub", "cars196", "sop", "in-shop", "market1501", "veri776", "vehicleid")
_NAME = click.argument("name", type=click.Choice(NAMES))
_MOST_LISTED = 20  # pairs
_ROOT = click.option("--root", type=FOLDER, required=True, help="The data set's folder, or its parent.")


@click.group()
def data() -> None:
    """Download and check the published data sets, or a run's data."""


@data.command(short_help="Count a data set's images, or list leaks of a run.")
@click.argument("name", type=click.Choice(NAMES), required=False)
@click.option("--root", type=FOLDER, help="The data set's folder, or its parent.")
@click.option("--decode", is_flag=True, help="Also decode every image, and list those that fail.")
@click.option(
    "--leaks",
    metavar="RUN",
    type=FOLDER,
    help="Instead of counting: list test images that are near-copies of training images, by this run's embeddings.",
)
@click.option(
    "--threshold", type=float, help="With --leaks: the least cosine of a pair that is listed; default: 0.98."
)
@click.option("--out", type=FILE, help="With --leaks: also write all pairs to a new CSV file.")
@click.pass_context
def check(
    context: click.Context,
    name: str | None,
    root: Path | None,
    decode: bool,
    leaks: Path | None,
    threshold: float | None,
    out: Path | None,
) -> None:
    """Compare a data set's counts with the published ones, or list a run's test images that leak.

    Exits with 0 if the data set NAME in --root is complete, with 1 if it is incomplete, and with 2 if it is missing.
    With --leaks: with 0 if no pair is that similar, with 1 if some are, and with 2 if the search failed.
    """
    if leaks is not None:
        if name is not None or root is not None or decode:
            raise DmlError("--leaks searches the run's own data set; omit NAME, --root and --decode")
        _check_leaks(context, leaks, threshold, out)
        return
    if name is None or root is None:
        raise DmlError("expected NAME and --root to count a published data set, or --leaks RUN")
    if threshold is not None or out is not None:
        raise DmlError("--threshold and --out belong to --leaks RUN, which wasn't given")
    from dml_train.data import check_dataset

    if not check_dataset(name, root, decode=decode, report=click.echo):
        context.exit(1)


def _check_leaks(context: click.Context, run: Path, threshold: float | None, out: Path | None) -> None:
    """List the leaks of a run; exit with 1 if there are any."""
    refuse_existing(out)
    from dml_train.trained.leaks import THRESHOLD, find_leaks, write_leaks

    least = THRESHOLD if threshold is None else threshold
    found = find_leaks(run, least, registry=context.obj, console=error_console())
    if out is not None:
        write_leaks(found, out)
    for leak in found[:_MOST_LISTED]:
        click.echo(f"{leak.similarity:.4f}  {leak.part} {leak.test} ({leak.test_class})")
        click.echo(f"        train {leak.train} ({leak.train_class})")
    if len(found) > _MOST_LISTED:
        rest = f"{len(found) - _MOST_LISTED:,} more"
        click.echo(f"{rest}: see {out}" if out else f"{rest}; --out FILE.csv writes them all")
    images = len({(leak.part, leak.test) for leak in found})
    click.echo(
        f"{len(found):,} pairs of {images:,} test images have a cosine of at least {least:g}"
        if found
        else f"no pair of a test image and a training image has a cosine of at least {least:g}"
    )
    if found:
        context.exit(1)


@data.command()
@_NAME
@_ROOT
@click.pass_context
def fetch(context: click.Context, name: str, root: Path) -> None:
    """Download, unpack and check a data set.

    It comes from its owners' servers. An interrupted download resumes, and archives already in the folder are used.
    Exits with 0 if the data set is complete, with 1 if it is incomplete, and with 2 if it can't be downloaded.
    """
    from dml_train.data import check_dataset, fetch_dataset

    fetch_dataset(name, root, console=error_console(), report=lambda text: click.echo(text, err=True))
    if not check_dataset(name, root, report=click.echo):
        context.exit(1)
