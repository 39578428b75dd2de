"""`dml embed`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from dml_core import DmlError, Registry
from dml_train.commands.options import FILE, FOLDER, error_console, refuse_existing
from dml_train.processes.limits import MOST_PROCESSES

if TYPE_CHECKING:
    from dml_train.trained.splits import SplitName


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("folder", type=FOLDER, required=False)
@click.option(
    "--split",
    type=click.Choice(["test", "gallery", "train"]),
    help="Split of the run's data set; default: test.",
)
@click.option("--out", type=FILE, required=True, help="A new .npy file: (N, dim) float32.")
@click.option("--labels", type=FILE, help="Also write labels to a new .npy file: (N,) int64.")
@click.option(
    "--codes", is_flag=True, help="Write binary codes, one bit per dimension: (N, ceil(dim / 8)) uint8."
)
@click.option(
    "--on-bad-image",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Stop at, or skip, an image in FOLDER that can't be decoded.",
)
@click.option(
    "--workers",
    type=click.IntRange(0, MOST_PROCESSES),
    help="Processes that load images of FOLDER; default: the run's.",
)
@click.pass_obj
def embed(
    registry: Registry,
    run: Path,
    folder: Path | None,
    split: str | None,
    out: Path,
    labels: Path | None,
    codes: bool,
    on_bad_image: str,
    workers: int | None,
) -> None:
    """Embed images with a run's weights.

    Embeds all images in FOLDER and its subfolders or, without FOLDER, a split of the run's data set. With FOLDER, a
    JSON file beside --out names the image of each row, each image's label is the folder that contains it, and the same
    command resumes after an interruption.
    """
    from dml_train.files import write_array
    from dml_train.measure.evaluate import pack_codes
    from dml_train.trained.folder import embed_folder, has_partial, index_path
    from dml_train.trained.model import open_model
    from dml_train.trained.overlap import count_training_images
    from dml_train.trained.splits import embed_split

    if folder is None:
        refuse_existing(out, labels)
        embeddings, split_labels = embed_split(
            run, cast("SplitName", split or "test"), registry=registry, console=error_console()
        )
        if labels:
            write_array(labels, split_labels)
        try:
            write_array(out, pack_codes(embeddings) if codes else embeddings)
        except DmlError:
            if labels:
                labels.unlink()  # otherwise the same command would refuse it
            raise
        return
    if split is not None:
        raise DmlError(f"both a folder ({folder}) and --split {split} were given; expected one of them")
    if out.suffix != ".npy":
        raise DmlError(
            f"--out is {out}; expected a name that ends in .npy, since a .json file is written beside it"
        )
    refuse_existing(out)
    if not has_partial(out):
        refuse_existing(index_path(out), labels)
    model = open_model(run, registry)
    done = embed_folder(
        model,
        folder,
        out,
        codes=codes,
        skip=on_bad_image == "skip",
        labels=labels,
        workers=model.recipe.training.workers if workers is None else workers,
        console=error_console(),
    )
    seen = count_training_images(model.recipe, registry, (folder / path for path in done.paths))
    if seen:
        unseen = out.with_stem(f"{out.stem}-test")
        click.echo(
            f"{seen:,} of these {len(done.paths):,} images are training images of the run: metrics of them "
            f"overestimate; for the unseen classes: dml embed {run} --split test --out {unseen}",
            err=True,
        )
    if done.reused:
        click.echo(f"{done.reused} images were embedded already", err=True)
    for path, reason in done.skipped:
        click.echo(f"skipped {path}: {reason}", err=True)
    click.echo(f"{out}: {len(done.paths)} images{f', {len(done.skipped)} skipped' if done.skipped else ''}")
