"""`dml embed`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from dml_core import DmlError, Registry
from dml_train.commands.engine import Cluster, engine_options
from dml_train.commands.options import FILE, FOLDER, ON_BAD_IMAGE, STEP, error_console, refuse_existing
from dml_train.processes.limits import MOST_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dml_train.trained.model import TrainedModel
    from dml_train.trained.splits import SplitName


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("images", type=click.Path(path_type=Path), required=False)
@click.option(
    "--split",
    type=click.Choice(["test", "gallery", "train"]),
    help="Split of the run's data set; default: test.",
)
@click.option(
    "--out",
    type=FILE,
    required=True,
    help="A new .npy file: (N, dim) float32; or, with IMAGES, a .parquet file.",
)
@click.option("--labels", type=FILE, help="Also write labels to a new .npy file: (N,) int64.")
@click.option(
    "--codes", is_flag=True, help="Write binary codes, one bit per dimension: (N, ceil(dim / 8)) uint8."
)
@ON_BAD_IMAGE
@click.option(
    "--workers",
    type=click.IntRange(0, MOST_PROCESSES),
    help="Processes that load images; default: the run's.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Embed only slice I of N, I from 0, into its own files beside --out; resumes. --join joins all slices.",
)
@click.option(
    "--join",
    is_flag=True,
    help="Embed nothing: join the slices beside --out to the file that one process would have written.",
)
@STEP
@engine_options
@click.pass_obj
def embed(
    registry: Registry,
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

    Embeds all images in the folder IMAGES and its subfolders or, without IMAGES, a split of the run's data set. IMAGES
    may also be a .tar archive (WebDataset), a table with a column of images or paths (.parquet, .arrow), or a folder of
    them. With IMAGES, a JSON file beside --out names the image of each row, each image's label is the folder that
    contains it, and the same command resumes after an interruption.

    Several machines share the images by --shard I/N, each with another I. Then the same command with --join instead
    writes the file.
    """
    if images is not None and split is not None:
        raise DmlError(f"both a folder ({images}) and --split {split} were given; expected one of them")
    if shard is not None and join:
        raise DmlError("both --shard and --join were given; expected one of them: --join after all shards")
    if shard is not None and labels is not None:
        raise DmlError("--labels with --shard: labels are those of all images; give --labels with --join")
    if cluster is not None and (join or workers is not None):
        raise DmlError(
            f"--engine ray was given with {'--join' if join else '--workers'}, which this machine does alone"
        )
    part = cast("SplitName", split or "test")
    if images is None and shard is None and not join and cluster is None:
        _embed_split(registry, run, part, step, out, labels, codes)
        return
    sharded = shard is not None or join
    if out.suffix != ".npy" and (sharded or images is None or out.suffix != ".parquet"):
        raise DmlError(
            f"--out is {out}; expected a name that ends in .npy, since a .json file is written beside it"
            f"{'' if sharded or images is None else ', or in .parquet'}"
        )
    from dml_train.trained.folder import embed_images, has_partial, index_path
    from dml_train.trained.images import SplitImages
    from dml_train.trained.model import open_model
    from dml_train.trained.plan import EmbeddingPlan, Engine, ThisProcess
    from dml_train.trained.stored_images import open_images

    refuse_existing(out)
    if not has_partial(out):
        refuse_existing(index_path(out), labels)
    model = open_model(run, registry, step=step)
    listed = SplitImages(model, part, registry) if images is None else open_images(images)
    plan = EmbeddingPlan(model, listed, codes)
    if join:
        from dml_train.trained.shards import join_shards

        joined = join_shards(plan, out, labels=labels)
        if len(joined.machines) > 1:
            click.echo(
                f"embedded by different machines, whose last bits may differ: {'; '.join(joined.machines)}",
                err=True,
            )
        done = joined.embedding
    else:
        embedder: Engine
        if cluster is None:
            embedder = ThisProcess(model.recipe.training.workers if workers is None else workers)
        else:
            from dml_train.trained.ray_engine import RayEngine

            embedder = RayEngine(cluster, registry=registry)
        # A data set omits its bad images itself: its items stay those of its labels.
        skip, console = on_bad_image == "skip" and images is not None, error_console()
        if shard is None:
            done = embed_images(plan, out, embedder, skip=skip, labels=labels, console=console)
        else:
            from dml_train.trained.shard_manifests import Shard
            from dml_train.trained.shards import embed_shard

            slice_ = Shard.read(shard)
            done = embed_shard(plan, out, slice_, embedder, skip=skip, console=console)
            out = slice_.path(out)
    if images is not None and images.is_dir() and shard is None:
        _warn_of_training_images(registry, model, run, images, out, done.paths)
    if done.reused and not join:
        click.echo(f"{done.reused} images were embedded already", err=True)
    for path, reason in done.skipped:
        click.echo(f"skipped {path}: {reason}", err=True)
    click.echo(f"{out}: {len(done.paths)} images{f', {len(done.skipped)} skipped' if done.skipped else ''}")


def _embed_split(
    registry: Registry,
    run: Path,
    split: SplitName,
    step: int | None,
    out: Path,
    labels: Path | None,
    codes: bool,
) -> None:
    from dml_train.files import write_array
    from dml_train.measure.evaluate import pack_codes
    from dml_train.trained.splits import embed_split

    refuse_existing(out, labels)
    embeddings, split_labels = embed_split(run, split, step=step, registry=registry, console=error_console())
    if labels:
        write_array(labels, split_labels)
    try:
        write_array(out, pack_codes(embeddings) if codes else embeddings)
    except DmlError:
        if labels:
            labels.unlink()  # otherwise the same command would refuse it
        raise
    click.echo(f"{out}: {len(embeddings)} images")


def _warn_of_training_images(
    registry: Registry, model: TrainedModel, run: Path, folder: Path, out: Path, paths: Sequence[str]
) -> None:
    from dml_train.trained.overlap import count_training_images

    if seen := count_training_images(model.recipe, registry, (folder / path for path in paths)):
        unseen = out.with_stem(f"{out.stem}-test")
        click.echo(
            f"{seen:,} of these {len(paths):,} images are training images of the run: metrics of them "
            f"overestimate; for the unseen classes: dml embed {run} --split test --out {unseen}",
            err=True,
        )
