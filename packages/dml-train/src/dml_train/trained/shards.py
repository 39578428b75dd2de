"""Embedding in shards: each machine takes a slice of the chunks, and the parts join to the bytes of one process.

Shard I of N has the chunks from ``I · C // N`` to ``(I + 1) · C // N`` of all C. It resumes as an unsharded call does,
and ends with two files: its rows, ``NAME.shard-I-of-N.npy``, and its manifest, the same with ``.json``: what its rows
depend on, a digest of the list of all images, and one of its own. Joining checks all manifests before it writes.

Shapes: `B` rows of a shard.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from rich.console import Console

from dml_core import DmlError, InvalidOption
from dml_train.files import lock_folder, read_array, read_json, write_atomically, write_json
from dml_train.trained.chunk_store import ChunkStore, write_header
from dml_train.trained.folder import FolderEmbedding, chunks_folder, index_path, write_embedding
from dml_train.trained.plan import EmbeddingPlan, Engine


@dataclass(frozen=True, slots=True)
class Shard:
    """One slice of the images.

    Args:
        index: from 0.
        count: the number of slices.

    Raises:
        InvalidOption: if the index isn't in [0, count).
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InvalidOption(
                f"the shard is {self}; expected I/N with I from 0 to N - 1: the first of two shards is 0/2, "
                "the second 1/2"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def read(cls, text: str) -> Shard:
        """Read ``I/N``.

        Raises:
            InvalidOption: if it has another form, or there is no such shard.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        if found is None:
            raise InvalidOption(f"the shard is {text!r}; expected I/N with numbers, such as 0/8")
        return cls(int(found[1]), int(found[2]))

    def chunks(self, total: int) -> range:
        """Return this shard's chunks of so many."""
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)

    def path(self, out: Path) -> Path:
        """Return the file of this shard's rows."""
        return out.with_stem(f"{out.stem}.shard-{self.index}-of-{self.count}")


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
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        manifest = {
            "shard": shard.index,
            "of": shard.count,
            "made_by": plan.made_by,
            "images": len(plan.images.names),
            "list": _digest(plan.images.names),
            "slice": _digest_slice(plan, shard),
            "machine": _machine(plan),
            "sha256": digest,
            "paths": kept,
            "skipped": [{"path": name, "reason": reason} for name, reason in skipped],
        }
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
    manifest = _read_manifest(index_path(path))
    _refuse_foreign(plan, path, manifest)
    try:
        _refuse_damaged(plan, shard, path, manifest)
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
    manifests = _find_manifests(out)
    for path, manifest in manifests.items():
        _refuse_foreign(plan, path, manifest)
    count = _common_count(out, manifests)
    found = _refuse_doubled(manifests)
    shards = [Shard(index, count) for index in range(count)]
    _refuse_missing(out, [shard for shard in shards if shard.index not in found])
    for shard in shards:
        _refuse_damaged(plan, shard, found[shard.index], manifests[found[shard.index]])
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


# ----------------------------------------------------------------------------------------------- checks of shards

_KEYS = {"shard", "of", "made_by", "images", "list", "slice", "machine", "sha256", "paths", "skipped"}


def _find_manifests(out: Path) -> dict[Path, dict[str, Any]]:
    """Read the manifests of a file's shards, by the paths of their rows."""
    names = re.compile(re.escape(out.stem) + r"\.shard-\d+-of-\d+\.json")
    folder = out.parent
    files = sorted(path for path in folder.iterdir() if names.fullmatch(path.name)) if folder.is_dir() else []
    if not files and not _unfinished(out):
        raise DmlError(
            f"{folder} holds no shards of {out.name}: no file {out.stem}.shard-I-of-N.json; "
            "embed each of them first, with --shard I/N"
        )
    return {file.with_suffix(out.suffix): _read_manifest(file) for file in files}


def _read_manifest(file: Path) -> dict[str, Any]:
    manifest = read_json(file)
    if missing := _KEYS - manifest.keys():
        raise DmlError(f"{file} is corrupt: it lacks {min(missing)!r}; remove it, and embed that shard again")
    return manifest


def _refuse_foreign(plan: EmbeddingPlan, path: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a shard of another run, checkpoint, kind of rows, or list of images."""
    for key, expected in json.loads(json.dumps(plan.made_by)).items():
        if (came := manifest["made_by"].get(key)) != expected:
            raise DmlError(
                f"{path} belongs to another embedding: its {key} is {came!r}; expected {expected!r}, by the run in "
                f"{plan.model.folder.path} at step {plan.model.step}. Remove it, and embed that shard again"
            )
    if (manifest["images"], manifest["list"]) != (len(plan.images.names), _digest(plan.images.names)):
        raise DmlError(
            f"{path} belongs to another list of {manifest['images']:,} images; expected the "
            f"{len(plan.images.names):,} of {plan.images.title}. Remove it, and embed that shard again"
        )


def _common_count(out: Path, manifests: Mapping[Path, Mapping[str, Any]]) -> int:
    """Return the number of shards that all of them name."""
    counts = sorted(
        {manifest["of"] for manifest in manifests.values()} | {shard.count for shard in _unfinished(out)}
    )
    if len(counts) > 1:
        raise DmlError(
            f"{out.parent} holds shards of {out.name} of different divisions, of "
            f"{' and of '.join(map(str, counts))}; remove those of all but one"
        )
    count: int = counts[0]
    return count


def _refuse_doubled(manifests: Mapping[Path, Mapping[str, Any]]) -> dict[int, Path]:
    """Return the path of each shard by its index."""
    found: dict[int, Path] = {}
    for path, manifest in manifests.items():
        if (other := found.setdefault(manifest["shard"], path)) != path:
            raise DmlError(
                f"{other} and {path} both hold shard {manifest['shard']}/{manifest['of']}; remove one of them"
            )
    return found


def _refuse_missing(out: Path, missing: Sequence[Shard]) -> None:
    if not missing:
        return
    unfinished = [shard for shard in missing if chunks_folder(shard.path(out)).is_dir()]
    absent = [shard for shard in missing if shard not in unfinished]
    parts = [
        f"{_listed(shards)} {'is' if len(shards) == 1 else 'are'} {state}"
        for shards, state in ((absent, "missing"), (unfinished, "unfinished"))
        if shards
    ]
    raise DmlError(f"{out} can't be joined: {', '.join(parts)}; run each with --shard I/N first")


def _listed(shards: Sequence[Shard], most: int = 10) -> str:
    shown = ", ".join(map(str, shards[:most]))
    more = f" and {len(shards) - most} more" if len(shards) > most else ""
    return f"shard{'' if len(shards) == 1 else 's'} {shown}{more}"


def _refuse_damaged(plan: EmbeddingPlan, shard: Shard, path: Path, manifest: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise DmlError(f"{path}, the rows of shard {shard}, is missing; embed that shard again")
    with path.open("rb") as file:
        intact = hashlib.file_digest(file, "sha256").hexdigest() == manifest["sha256"]
    if not intact:
        raise DmlError(
            f"{path} is damaged: its checksum isn't that of its manifest; embed shard {shard} again"
        )
    if manifest["slice"] != _digest_slice(plan, shard):
        raise DmlError(
            f"images of {plan.images.title} have changed since shard {shard} was embedded ({path}); "
            "embed that shard again"
        )


def _unfinished(out: Path) -> list[Shard]:
    """Return the shards that some process began and none ended."""
    names = re.compile(
        re.escape(f".{out.stem}") + r"\.shard-(\d+)-of-(\d+)" + re.escape(f"{out.suffix}.chunks")
    )
    found = map(names.fullmatch, (path.name for path in out.parent.iterdir())) if out.parent.is_dir() else ()
    shards = [(int(name[1]), int(name[2])) for name in found if name]
    return [Shard(index, count) for index, count in sorted(shards) if index < count]


# ------------------------------------------------------------------------------------------------------- digests


def _digest(names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def _digest_slice(plan: EmbeddingPlan, shard: Shard) -> str:
    """Digest the names and sizes of a shard's images: equal for a copy of them on another machine."""
    items = (item for chunk in shard.chunks(len(plan)) for item in plan.items(chunk))
    return _digest(f"{plan.images.names[item]} {plan.images.size(item)}" for item in items)


def _machine(plan: EmbeddingPlan) -> str:
    """Name what the last bits of an embedding depend on: the processor, its threads, and torch."""
    device = plan.model.device
    if device.type == "cuda":
        kind = torch.cuda.get_device_name(device)
    else:
        kind = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return f"{device.type} {kind}, torch {torch.__version__}"
