"""`dml data check` and `dml data fetch`."""

from __future__ import annotations

from pathlib import Path

import click

from dml_core import DmlError, Registry, nearest
from dml_train.commands.options import FILE, FOLDER, STEP, error_console, printable, refuse_existing

# Repeated here, since the data sets' modules take seconds to import; a test compares the names.
NAMES = ("cub", "cars196", "sop", "in-shop", "market1501", "veri776", "vehicleid")
_MOST_LISTED = 20  # pairs


@click.group()
def data() -> None:
    """Check your images; check or download published data."""


@data.command(short_help="Check a folder of images or a published data set, or list leaks of a run.")
@click.argument("source", metavar="FOLDER|TABLE.csv|NAME", required=False)
@click.option(
    "--root",
    type=FOLDER,
    help="With NAME: the data set's folder, or its parent. With TABLE.csv: where its paths start; default: its folder.",
)
@click.option("--decode", is_flag=True, help="With NAME: also decode every image, and list those that fail.")
@click.option(
    "--leaks",
    metavar="RUN",
    type=FOLDER,
    help="List test images that are near-copies of training images, by this run's embeddings.",
)
@click.option("--threshold", type=float, help="With --leaks: the least cosine to list a pair; default: 0.98.")
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
    """Check a folder or table of your images, count a published data set, or list a run's test images that leak.

    Of FOLDER (FOLDER/CLASS/IMAGE) or TABLE.csv (columns path and label): images a class, sizes, broken files,
    duplicates, and a command to begin with. Exits with 0 if no image is broken or a duplicate, with 1 if some are, and
    with 2 if there are no classes to check.

    Of a published data set NAME in --root: its counts beside the published ones. Exits with 0 if it is complete, with 1
    if it is incomplete, and with 2 if it is missing.

    With --leaks: exits with 0 if no pair is that similar, with 1 if some are, and with 2 if the search failed.
    """
    if leaks is not None:
        if source is not None or root is not None or decode:
            raise DmlError(
                "--leaks searches the run's own data set; omit FOLDER, TABLE.csv or NAME, --root and --decode"
            )
        clean = _check_leaks(context.obj, leaks, threshold, step, out)
    elif threshold is not None or step is not None:
        raise DmlError("--threshold and --step belong to --leaks RUN, which wasn't given")
    elif source is None:
        raise DmlError(
            "expected a folder of images, a table (.csv), the name of a published data set and --root, or --leaks RUN"
        )
    elif source in NAMES:
        if root is None:
            raise DmlError(f"{source} is a published data set; expected its folder: --root FOLDER")
        if out is not None:
            raise DmlError(
                f"--out lists what is found in a folder or table of yours; {source} is a published data set"
            )
        from dml_train.data.published.sets import check_dataset

        clean = check_dataset(source, root, decode=decode, report=click.echo)
    elif decode:
        raise DmlError(
            "--decode belongs to a published data set; the images of a folder or table are always decoded"
        )
    else:
        clean = _check_images(context.obj, source, root, out)
    if not clean:
        context.exit(1)


def _check_images(registry: Registry, source: str, root: Path | None, out: Path | None) -> bool:
    """Describe a folder or table of images; return whether none is broken or a duplicate."""
    path = Path(source)
    if not path.exists():
        raise DmlError(
            f"{source} doesn't exist{nearest(source, NAMES)} expected a folder of images, a table (.csv), or a "
            f"published data set: {', '.join(NAMES)}"
        )
    refuse_existing(out)
    from dml_train.data.inspection import describe_inspection, inspect_images, write_findings
    from dml_train.data.preparation import Preparation
    from dml_train.recipe.loading import read

    recipe, _ = read("my-images")  # which the last line suggests
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
    """List the leaks of a run; return whether there are none."""
    refuse_existing(out)
    from dml_train.files import write_csv
    from dml_train.trained.leaks import THRESHOLD, Leak, find_leaks

    least = THRESHOLD if threshold is None else threshold
    found = find_leaks(run, least, step=step, registry=registry, console=error_console())
    if out is not None:
        write_csv(out, Leak._fields, found)
    for leak in found[:_MOST_LISTED]:
        click.echo(
            f"{leak.similarity:.4f}  {leak.part} {printable(leak.test)} ({printable(leak.test_class)})"
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
@click.option("--root", type=FOLDER, required=True, help="The data set's folder, or its parent.")
@click.pass_context
def fetch(context: click.Context, name: str, root: Path) -> None:
    """Download, unpack and check a data set.

    It comes from its owners' servers. Archives already in the folder are used.
    Exits with 0 if the data set is complete, with 1 if it is incomplete, and with 2 if it can't be downloaded.
    """
    from dml_train.data.published.fetching import fetch_dataset
    from dml_train.data.published.sets import check_dataset

    fetch_dataset(name, root, report=lambda text: click.echo(text, err=True))
    if not check_dataset(name, root, report=click.echo):
        context.exit(1)
