"""Images to one file of embeddings, in steps that survive the end of the process.

Called again, `embed_images` embeds only chunks that are missing, torn, or of other sources (see `ChunkStore`); then it
joins all chunks.

Shapes: `N` images that can be decoded, `D` embedding dimension.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console

from dml_core import DmlError
from dml_train.files import lock_folder, write_array, write_atomically, write_json
from dml_train.measure.chunks import CHUNK_SIZE
from dml_train.trained.chunk_store import ChunkStore
from dml_train.trained.images import FolderImages
from dml_train.trained.model import TrainedModel
from dml_train.trained.parquet import write_parquet
from dml_train.trained.plan import EmbeddingPlan, Engine, ThisProcess


@dataclass(frozen=True, slots=True)
class FolderEmbedding:
    """The result of `embed_folder`.

    Args:
        paths: (N,) of the rows, relative to the folder, with ``/`` between folders.
        skipped: path and reason of each omitted image.
        reused: number of images that an earlier call had embedded.
    """

    paths: Sequence[str]
    skipped: Sequence[tuple[str, str]]
    reused: int


def embed_folder(
    model: TrainedModel,
    folder: Path | str,
    out: Path | str,
    *,
    codes: bool = False,
    skip: bool = False,
    labels: Path | str | None = None,
    chunk_size: int = CHUNK_SIZE,
    workers: int = 0,
    console: Console | None = None,
) -> FolderEmbedding:
    """Embed all images of a folder and its subfolders, in the order of their paths.

    Beside `out` it writes a JSON file of the same name with ``.json`` for ``.npy``: the paths of the rows, the skipped
    images, the run and its step, and how images were prepared. Until all is done, chunks lie in ``.NAME.npy.chunks``.

    Args:
        model: embeds the images.
        folder: holds the images.
        out: the new .npy file: (N, D) float32, or, with `codes`, (N, ceil(D / 8)) uint8.
        codes: whether to write one bit per dimension, see `pack_codes`.
        skip: whether to omit images that can't be decoded; otherwise they are an error.
        labels: a new .npy file for labels, (N,) int64: the index of the image's first folder among all first folders,
            sorted by name.
        chunk_size: number of images that pass through the network, and are written, at a time; the last bits of the
            embeddings depend on it.
        workers: number of processes that load ahead.
        console: shows the progress; default: no progress is shown.

    Raises:
        DmlError: no images, an image that can't be decoded, labels for images in no folder, a full disk, or another
            process that writes the same file. Finished chunks stay.
    """
    plan = EmbeddingPlan(model, FolderImages(Path(folder)), codes, chunk_size)
    return embed_images(plan, out, ThisProcess(workers), skip=skip, labels=labels, console=console)


def embed_images(
    plan: EmbeddingPlan,
    out: Path | str,
    engine: Engine,
    *,
    skip: bool = False,
    labels: Path | str | None = None,
    console: Console | None = None,
) -> FolderEmbedding:
    """Embed the images of a plan, as `embed_folder` does.

    Args:
        plan: the images, and what embeds them.
        out: the new .npy file, or a .parquet file; see `write_parquet`.
        skip, labels, console: as of `embed_folder`.
        engine: embeds chunks.

    Raises:
        DmlError: as `embed_folder`.
    """
    out = Path(out)
    if labels is not None:
        plan.images.labels(plan.images.names)  # or fail before the work
    chunks = chunks_folder(out)
    store = ChunkStore(chunks, plan, range(len(plan)))
    with lock_folder(chunks, f"writing {out}"):
        reused = store.fill(engine, skip=skip, console=console)
        kept, skipped = store.kept_and_skipped()
        write_rows: Callable[[BinaryIO], object] = store.join
        if out.suffix == ".parquet":
            ids = None if labels is None else plan.images.labels(kept)[0]
            write_rows = partial(write_parquet, parts=store.parts(), width=plan.width, labels=ids)
        write_embedding(plan, out, kept, skipped, write_rows, labels)
        shutil.rmtree(chunks)
    return FolderEmbedding(kept, skipped, reused)


def write_embedding(
    plan: EmbeddingPlan,
    out: Path,
    kept: Sequence[str],
    skipped: Sequence[tuple[str, str]],
    write_rows: Callable[[BinaryIO], object],
    labels: Path | str | None,
) -> None:
    """Write the files of a complete embedding: labels, the description of the rows, and the rows.

    Args:
        plan: the images, and what embedded them.
        out: the file of rows.
        kept: (N,) the names of the rows.
        skipped: name and reason of each omitted image.
        write_rows: writes the .npy file.
        labels: the file of labels; None: they aren't written.

    Raises:
        DmlError: if no image is left, one has no label, or the disk refuses.
    """
    if not kept:
        raise DmlError(
            f"none of the {len(plan.images.names)} images in {plan.images.title} can be decoded; "
            f"e.g. {skipped[0][1]}"
        )
    classes: dict[str, Any] = {}
    if labels is not None:
        label_ids, classes = plan.images.labels(kept)
        write_array(Path(labels), label_ids)
    if (described := plan.images.describe()) is not None:
        model = plan.model
        write_json(
            index_path(out),
            {
                "run": str(model.folder.path.resolve()),
                "step": model.step,
                "weights": model.weights,
                **described,
                "preparation": {} if model.reader is None else model.reader.describe(),
                "kind": "codes" if plan.codes else "float32",
                "dim": model.dim,
                **classes,
                "paths": kept,
                "skipped": [{"path": path, "reason": reason} for path, reason in skipped],
            },
        )
    write_atomically(out, write_rows)  # last: where it exists, the others do


def index_path(embeddings: Path) -> Path:
    """Return the path of the JSON file that describes the rows of a .npy file."""
    return embeddings.with_suffix(".json")


def has_partial(out: Path) -> bool:
    """Whether an earlier call has written chunks of this file."""
    return chunks_folder(out).is_dir()


def chunks_folder(out: Path) -> Path:
    """Return the folder of a file's finished chunks, as long as others are missing."""
    return out.with_name(f".{out.name}.chunks")
