"""`dml embed`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from dml_core import DmlError, Registry
from dml_train.commands.engine import Cluster, engine_options
from dml_train.commands.options import FILE, FOLDER, ON_BAD_IMAGE, STEP, check_new, error_console
from dml_train.processes.limits import MOST_PROCESSES


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("images", type=click.Path(path_type=Path), required=False)
@click.option(
    "--split",
    type=click.Choice(["test", "gallery", "train"]),
    help="Split of the run's data set to embed; default: test.",
)
@click.option(
    "--out",
    type=FILE,
    required=True,
    help="A new .npy file: (N, dim) float32; with IMAGES, also .parquet.",
)
@click.option("--labels", type=FILE, help="Also write labels to a new .npy file: (N,) int64.")
@click.option(
    "--codes", is_flag=True, help="Write one bit per dimension: (N, ceil(dim / 8)) uint8."
)
@ON_BAD_IMAGE
@click.option(
    "--workers",
    type=click.IntRange(0, MOST_PROCESSES),
    help="Loader processes; default: as in the run.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Embed only slice I of N, I from 0, into separate files next to --out.",
)
@click.option("--join", is_flag=True, help="Don't embed, but join the slices into one file.")
@STEP
@engine_options
@click.pass_obj
def embed(
    registry: Registry,
    /,
    run: Path,
    images: Path | None,
    split: str | None,
    out: Path,
    labels: Path | None,
    codes: bool,
    on_bad_image: str,
    workers: int | None,
    shard: str | None,
    join: bool,
    step: int | None,
    cluster: Cluster,
) -> None:
    """Embed images with a run's weights.

    Embed all images in the folder IMAGES and subfolders or, without IMAGES, a split of the run's
    data set. IMAGES can also be a .tar archive (WebDataset), a table with a column of images or
    paths (.parquet, .arrow), or a folder of these files. With IMAGES, a JSON file next to --out
    names the image of each row, and an image's label is the first folder in the image's path.
    Repeat the command to resume after an interruption.

    To share the images between machines, use --shard I/N with a different I on each machine. Then
    use --join instead of --shard to write the file.
    """
    if images is not None and split is not None:
        raise DmlError(
            f"both a folder ({images}) and --split {split} were given; expected one of them"
        )
    if shard is not None and join:
        raise DmlError(
            "both --shard and --join were given; expected one of them: --join after all shards"
        )
    if shard is not None and labels is not None:
        raise DmlError(
            "--labels was given with --shard, which embeds some images; use --labels with --join"
        )
    if cluster is not None and (join or workers is not None):
        raise DmlError(
            f"--engine ray was given with {'--join' if join else '--workers'}, which works only on "
            "this machine"
        )
    suffixes = [".npy"] if images is None or shard is not None or join else [".npy", ".parquet"]
    if out.suffix not in suffixes:
        raise DmlError(f"--out is {out}; expected a name that ends in {' or '.join(suffixes)}")
    from dml_train.trained.folder import chunks_folder, embed_images, index_path
    from dml_train.trained.images import SplitName, list_split, open_images
    from dml_train.trained.model import open_model
    from dml_train.trained.plan import EmbeddingPlan, Engine, ThisProcess
    from dml_train.trained.shards import Shard, embed_shard, join_shards

    check_new(out)
    if not chunks_folder(out).is_dir():  # an interrupted call may have written these files
        check_new(labels, None if images is None else index_path(out))
    slice_ = None if shard is None else Shard.read(shard)
    model = open_model(run, registry, step=step)
    listed = (
        list_split(model, cast("SplitName", split or "test"), registry)
        if images is None
        else open_images(images)
    )
    plan = EmbeddingPlan(model, listed, codes)
    # A data set drops bad images itself, so that the items of a split match the labels; don't skip
    # more here.
    skip, console = on_bad_image == "skip" and images is not None, error_console()
    embedder: Engine = ThisProcess(model.recipe.training.workers if workers is None else workers)
    if cluster is not None:
        from dml_train.trained.ray_engine import RayEngine

        embedder = RayEngine(cluster, registry=registry)
    if join:
        done = join_shards(plan, out, labels=labels)
        if len(done.machines) > 1:
            machines = "; ".join(done.machines)
            click.echo(
                f"embedded by different machines, so last bits may differ: {machines}", err=True
            )
    elif slice_ is not None:
        done = embed_shard(plan, out, slice_, embedder, skip=skip, console=console)
        out = slice_.path(out)
    else:
        done = embed_images(plan, out, embedder, skip=skip, labels=labels, console=console)
    if images is not None and images.is_dir() and shard is None:
        from dml_train.trained.leaks import count_training_images

        if seen := count_training_images(
            model.recipe, registry, (images / path for path in done.paths)
        ):
            unseen = out.with_stem(f"{out.stem}-test")
            click.echo(
                f"{seen:,} of these {len(done.paths):,} images are training images of the run: "
                f"metrics on them are too high; to embed unseen classes: dml embed {run} --split "
                f"test --out {unseen}",
                err=True,
            )
    if done.reused and not join:
        click.echo(f"{done.reused} images were embedded already", err=True)
    for path, reason in done.skipped:
        click.echo(f"skipped {path}: {reason}", err=True)
    click.echo(
        f"{out}: {len(done.paths)} images{f', {len(done.skipped)} skipped' if done.skipped else ''}"
    )
