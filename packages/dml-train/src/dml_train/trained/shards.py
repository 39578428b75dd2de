"""Embedding in shards: each machine takes a slice of the chunks, and the parts join to the bytes of one process.

Shard I of N has the chunks from ``I · C // N`` to ``(I + 1) · C // N`` of all C. It resumes as an unsharded call does,
and ends with two files: its rows, ``NAME.shard-I-of-N.npy``, and its manifest, the same with ``.json``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from dml_core import DmlError
from dml_train.files import lock_folder, read_array, write_atomically, write_json
from dml_train.trained.chunk_store import ChunkStore, write_header
from dml_train.trained.folder import FolderEmbedding, chunks_folder, index_path, write_embedding
from dml_train.trained.plan import EmbeddingPlan, Engine
from dml_train.trained.shard_manifests import (
    Shard,
    common_count,
    find_manifests,
    make_manifest,
    read_manifest,
    refuse_damaged,
    refuse_doubled,
    refuse_foreign,
    refuse_missing,
)


def embed_shard(
    plan: EmbeddingPlan,
    out: Path | str,
    shard: Shard,
    engine: Engine,
    *,
    skip: bool = False,
    console: Console | None = None,
) -> FolderEmbedding:
    """Embed one shard of a plan's images into its own files.

    Args:
        plan: all images, and what embeds them.
        out: the file that the shards will be joined to; theirs are beside it.
        shard: the slice to embed. It may be empty: there can be more shards than chunks.
        engine: embeds chunks.
        skip: whether to omit images that can't be decoded; otherwise they are an error.
        console: shows the progress; default: no progress is shown.

    Raises:
        DmlError: an image that can't be decoded, a full disk, another process that embeds the same shard, or a finished
            shard of another embedding. Finished chunks stay.
    """
    path = shard.path(Path(out))
    if (done := _read_finished(plan, path, shard)) is not None:
        return done
    partial = chunks_folder(path)
    store = ChunkStore(partial, plan, shard.chunks(len(plan)))
    with lock_folder(partial, f"embedding shard {shard} of {out}"):
        reused = store.fill(engine, skip=skip, console=console)
        kept, skipped = store.kept_and_skipped()
        write_atomically(path, store.join)
        manifest = make_manifest(plan, shard, path, kept, skipped)
        write_json(index_path(path), manifest)  # last: where it exists, the rows do
        shutil.rmtree(partial)
    return FolderEmbedding(kept, skipped, reused)


def _read_finished(plan: EmbeddingPlan, path: Path, shard: Shard) -> FolderEmbedding | None:
    """Read what an earlier call has finished; None if that is damaged, or images have changed since.

    Raises:
        DmlError: if it belongs to another embedding.
    """
    if not index_path(path).is_file():
        return None
    manifest = read_manifest(index_path(path))
    refuse_foreign(plan, path, manifest)
    try:
        refuse_damaged(plan, shard, path, manifest)
    except DmlError:
        return None
    skipped = [(image["path"], image["reason"]) for image in manifest["skipped"]]
    return FolderEmbedding(manifest["paths"], skipped, plan.count(shard.chunks(len(plan))))


@dataclass(frozen=True, slots=True)
class JoinedShards:
    """The result of `join_shards`.

    Args:
        embedding: the names of the rows, and the skipped images; reused are all images.
        shards: the files of rows that were joined, in their order.
        machines: the kinds of machine that embedded them; the bits of one process are certain for a single one.
    """

    embedding: FolderEmbedding
    shards: Sequence[Path]
    machines: Sequence[str]


def join_shards(plan: EmbeddingPlan, out: Path | str, *, labels: Path | str | None = None) -> JoinedShards:
    """Join the shards of an embedding to the files that `embed_images` would have written.

    The shards stay.

    Args:
        plan: all images, and what embedded them.
        out: the new file; its shards lie beside it.
        labels: as of `embed_folder`.

    Raises:
        DmlError: before anything is written, if a shard is missing, unfinished, there twice, damaged, or foreign: of
            another run, checkpoint, kind or list of images.
    """
    out = Path(out)
    manifests = find_manifests(out)
    for path, manifest in manifests.items():
        refuse_foreign(plan, path, manifest)
    count = common_count(out, manifests)
    found = refuse_doubled(manifests)
    shards = [Shard(index, count) for index in range(count)]
    refuse_missing(out, [shard for shard in shards if shard.index not in found])
    for shard in shards:
        refuse_damaged(plan, shard, found[shard.index], manifests[found[shard.index]])
    ordered = [manifests[found[shard.index]] for shard in shards]
    kept = [name for manifest in ordered for name in manifest["paths"]]
    skipped = [(image["path"], image["reason"]) for manifest in ordered for image in manifest["skipped"]]
    if labels is not None:
        plan.images.labels(kept)  # or fail before anything is written
    paths = [found[shard.index] for shard in shards]
    write_embedding(plan, out, kept, skipped, _join(plan, paths, len(kept)), labels)
    machines = sorted({manifest["machine"] for manifest in ordered})
    return JoinedShards(FolderEmbedding(kept, skipped, len(plan.images.names)), paths, machines)


def _join(plan: EmbeddingPlan, paths: Sequence[Path], rows: int) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        write_header(file, plan, rows)
        for path in paths:
            file.write(read_array(path).tobytes())

    return write
