"""`dml data check` and `dml data fetch`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError, Registry, nearest
from dml_train.commands.options import FILE, FOLDER, STEP, check_new, error_console, printable

# Repeat the names here, since importing the data sets takes seconds; a test compares the names.
NAMES = ("cub", "cars196", "sop", "in-shop", "market1501", "veri776", "vehicleid")
_MOST_LISTED = 20  # maximum number of pairs to print


@click.group()
def data() -> None:
    """Check your images; check or download published data."""


@data.command(
    short_help="Check a folder of images or a published data set, or list leaks of a run."
)
@click.argument("source", metavar="FOLDER|TABLE|NAME", required=False)
@click.option(
    "--root",
    type=FOLDER,
    help=(
        "With NAME: the data set's folder, or the parent. With TABLE: the folder that contains the "
        "paths."
    ),
)
@click.option(
    "--decode", is_flag=True, help="With NAME: also decode all images, and list failures."
)
@click.option(
    "--leaks",
    metavar="RUN",
    type=FOLDER,
    help=(
        "List test images that are near-duplicates of training images, using this run's embeddings."
    ),
)
@click.option(
    "--threshold", type=float, help="With --leaks: minimum cosine of listed pairs; default: 0.98."
)
@STEP
@click.option("--out", type=FILE, help="Also write all findings to a new CSV file; not with NAME.")
@click.pass_context
def check(
    context: click.Context,
    source: str | None,
    root: Path | None,
    decode: bool,
    leaks: Path | None,
    threshold: float | None,
    step: int | None,
    out: Path | None,
) -> None:
    """Check a folder or table of your images, count a published data set, or list a run's test
    images that leak.

    With FOLDER (FOLDER/CLASS/IMAGE) or TABLE (CSV with the columns path and label, or Parquet,
    Arrow or WebDataset with image and label; also a folder of these): print images per class,
    sizes, broken files, duplicates, and a command to start with. Exit with 0 if no image is broken
    or a duplicate, with 1 if some are, and with 2 if there are no classes to check.

    With the NAME of a published data set in --root: compare the counts with the published counts.
    Exit with 0 if the data set is complete, with 1 if it is incomplete, and with 2 if it is
    missing.

    With --leaks: exit with 0 if no pair reaches the threshold, with 1 if some do, and with 2 if the
    search failed.
    """
    if leaks is not None:
        if source is not None or root is not None or decode:
            raise DmlError(
                "--leaks searches the run's data set; omit FOLDER, TABLE or NAME, --root and "
                "--decode"
            )
        clean = _check_leaks(context.obj, leaks, threshold, step, out)
    elif threshold is not None or step is not None:
        raise DmlError("--threshold and --step need --leaks RUN, which wasn't given")
    elif source is None:
        raise DmlError(
            "expected a folder of images, a table (.csv, .parquet, .arrow, .tar), the name of a "
            "published data set and --root, or --leaks RUN"
        )
    elif source in NAMES:
        if root is None:
            raise DmlError(f"{source} is a published data set; expected the folder: --root FOLDER")
        if out is not None:
            raise DmlError(
                f"--out only works with a folder or table of images; {source} is a published data "
                "set: omit --out"
            )
        from dml_train.data.published.sets import check_dataset

        clean = check_dataset(source, root, decode=decode, report=click.echo)
    elif decode:
        raise DmlError(
            "--decode only works with a published data set; images of a folder or table are always "
            "decoded"
        )
    else:
        clean = _check_images(context.obj, source, root, out)
    if not clean:
        context.exit(1)


def _check_images(registry: Registry, source: str, root: Path | None, out: Path | None) -> bool:
    """Describe a folder or table of images; return True if there aren't broken or duplicate
    images.
    """
    path = Path(source)
    if not path.exists():
        raise DmlError(
            f"{source} doesn't exist{nearest(source, NAMES)} expected a folder of images, a table "
            f"(.csv, .parquet, .arrow, .tar), or a published data set: {', '.join(NAMES)}"
        )
    check_new(out)
    from dml_train.data.inspection import describe_inspection, inspect_images, write_findings
    from dml_train.data.preparation import Preparation
    from dml_train.recipe.loading import read

    recipe, _ = read("my-images")  # the last line suggests this recipe
    preparation = Preparation(resize=recipe["dataset"]["resize"], crop=recipe["dataset"]["crop"])
    found = inspect_images(path, root=root, registry=registry, preparation=preparation)
    if out is not None:
        write_findings(found, out)
    for line in describe_inspection(found, recipe["sampler"]["batch_size"]):
        click.echo(printable(line))
    return not (found.bad or found.duplicates)


def _check_leaks(
    registry: Registry, run: Path, threshold: float | None, step: int | None, out: Path | None
) -> bool:
    """List the leaks of a run; return True if there are none."""
    check_new(out)
    from dml_train.files import write_csv
    from dml_train.trained.leaks import THRESHOLD, Leak, find_leaks

    least = THRESHOLD if threshold is None else threshold
    found = find_leaks(run, least, step=step, registry=registry, console=error_console())
    if out is not None:
        write_csv(out, Leak._fields, found)
    for leak in found[:_MOST_LISTED]:
        click.echo(
            f"{leak.similarity:.4f}  {leak.part} {printable(leak.test)} "
            f"({printable(leak.test_class)})"
        )
        click.echo(f"        train {printable(leak.train)} ({printable(leak.train_class)})")
    if len(found) > _MOST_LISTED:
        rest = f"{len(found) - _MOST_LISTED:,} more"
        click.echo(f"{rest}: see {out}" if out else f"{rest}; --out FILE.csv writes them all")
    images = len({(leak.part, leak.test) for leak in found})
    click.echo(
        f"{len(found):,} pairs of {images:,} test images have a cosine of at least {least:g}"
        if found
        else f"no pair of a test image and a training image has a cosine of at least {least:g}"
    )
    return not found


@data.command()
@click.argument("name", type=click.Choice(NAMES))
@click.option("--root", type=FOLDER, required=True, help="The data set's folder, or the parent.")
@click.pass_context
def fetch(context: click.Context, name: str, root: Path) -> None:
    """Download, unpack and check a data set.

    Download from the owners' servers, and reuse archives that are already in the folder. Exit with
    0 if the data set is complete, with 1 if it is incomplete, and with 2 if it can't be downloaded.
    """
    from dml_train.data.published.fetching import fetch_dataset
    from dml_train.data.published.sets import check_dataset

    fetch_dataset(name, root, report=lambda text: click.echo(text, err=True))
    if not check_dataset(name, root, report=click.echo):
        context.exit(1)
