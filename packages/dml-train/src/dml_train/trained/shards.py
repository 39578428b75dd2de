"""Embedding in shards: each machine takes a slice of the chunks, and the parts join to the bytes of one process.

Shard I of N has the chunks from ``I · C // N`` to ``(I + 1) · C // N`` of all C. It resumes as an unsharded call does,
and ends with two files: its rows, ``NAME.shard-I-of-N.npy``, and its manifest, the same with ``.json``.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dml_core import DmlError, InvalidOption
from dml_train.checksums import sha256_of
from dml_train.files import read_array, read_json, write_atomically, write_json
from dml_train.trained.folder import (
    ChunkStore,
    FolderEmbedding,
    index_path,
    list_skipped,
    write_embedding,
    write_rows,
)
from dml_train.trained.plan import EmbeddingPlan, Engine, digest

_KEYS = {"made_by", "slice", "machine", "sha256", "paths", "skipped"}
_MOST_LISTED = 10  # shards


@dataclass(frozen=True, slots=True)
class Shard:
    """Slice `index`, from 0, of `count` slices of the images; raise InvalidOption unless 0 <= index < count."""

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
        """Read ``I/N``, or raise InvalidOption."""
        found = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        if found is None:
            raise InvalidOption(f"the shard is {text!r}; expected I/N with numbers, such as 0/8")
        return cls(int(found[1]), int(found[2]))

    def chunks(self, total: int) -> range:
        """Return the chunks of this shard, of `total` chunks."""
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
    """Embed one shard of a plan's images into two files in the folder of `out`, the joined file; see `embed_images`.

    A shard may be empty: there can be more shards than chunks.

    Raises:
        DmlError: an image that can't be decoded, a full disk, another process that embeds the same shard, or a finished
            shard of another embedding. Finished chunks stay.
    """
    path, chunks = shard.path(Path(out)), shard.chunks(len(plan))
    if index_path(path).is_file():
        manifest = _read_manifest(plan, path, shard)
        if _find_damage(plan, path, shard, manifest) is None:
            return replace(_summarize([manifest]), reused=plan.count(chunks))
    doing = f"embedding shard {shard} of {out}"
    store = ChunkStore(path, plan, chunks)
    with store.filled(engine, doing=doing, skip=skip, console=console) as done:
        write_atomically(path, lambda file: write_rows(file, plan, len(done.paths), store.parts()))
        manifest = {
            "made_by": _made_by(plan, shard),
            "slice": _digest_slice(plan, shard),
            "machine": _describe_machine(plan.model.device),
            "sha256": sha256_of(path),
            "paths": done.paths,
            "skipped": list_skipped(done),
        }
        write_json(index_path(path), manifest)  # last: where it exists, the rows do
    return done


def join_shards(plan: EmbeddingPlan, out: Path | str, *, labels: Path | str | None = None) -> FolderEmbedding:
    """Join the shards of `out`, in its folder, to the files that `embed_images` would have written; the shards stay.

    In the result, all images are reused. One kind of `machines` guarantees the bits of one process.

    Raises:
        DmlError: before anything is written, if a shard is missing, unfinished, damaged, or made from a different run,
            checkpoint, kind, list of images or number of shards.
    """
    out = Path(out)
    shards = _find_shards(out)
    manifests = [_read_manifest(plan, shard.path(out), shard) for shard in shards]
    for shard, manifest in zip(shards, manifests):
        if (damage := _find_damage(plan, shard.path(out), shard, manifest)) is not None:
            raise DmlError(damage)
    done = replace(_summarize(manifests), reused=len(plan.images.names))
    if labels is not None:
        plan.images.labels(done.paths)  # or fail before anything is written
    write_embedding(plan, out, done, (read_array(shard.path(out)) for shard in shards), labels)
    return done


def _find_shards(out: Path) -> list[Shard]:
    """Return the shards of a file, or raise DmlError if one isn't finished, or there are different divisions."""
    folder = out.parent
    pattern = re.compile(re.escape(out.stem) + r"\.shard-(\d+)-of-(\d+)\.json")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = {(int(name[1]), int(name[2])) for name in map(pattern.fullmatch, names) if name}
    if not found:
        raise DmlError(
            f"{folder} holds no finished shards of {out.name}: no file {out.stem}.shard-I-of-N.json; "
            "embed each of them first, with --shard I/N"
        )
    counts = sorted({count for _, count in found})
    if len(counts) > 1:
        raise DmlError(
            f"{folder} holds shards of {out.name} of different divisions, of {' and of '.join(map(str, counts))}; "
            "remove those of all but one"
        )
    shards = [Shard(index, counts[0]) for index in range(counts[0])]
    missing = [str(shard) for shard in shards if (shard.index, shard.count) not in found]
    if missing:
        more = f" and {len(missing) - _MOST_LISTED} more" if len(missing) > _MOST_LISTED else ""
        raise DmlError(
            f"{out} can't be joined: of its shards, {', '.join(missing[:_MOST_LISTED])}{more} are missing or "
            "unfinished; run each with --shard I/N first"
        )
    return shards


def _read_manifest(plan: EmbeddingPlan, path: Path, shard: Shard) -> dict[str, Any]:
    """Read a shard's manifest, or raise DmlError if it is corrupt, or describes a different shard or embedding."""
    file = index_path(path)
    manifest = read_json(file)
    if missing := _KEYS - manifest.keys():
        raise DmlError(f"{file} is corrupt: it lacks {min(missing)!r}; remove it, and embed that shard again")
    for key, expected in json.loads(json.dumps(_made_by(plan, shard))).items():
        if (came := manifest["made_by"].get(key)) != expected:
            raise DmlError(
                f"{path} belongs to another embedding: its {key} is {came!r}; expected {expected!r}, by the run in "
                f"{plan.model.folder.path} at step {plan.model.step}. Remove it, and embed that shard again"
            )
    return manifest


def _made_by(plan: EmbeddingPlan, shard: Shard) -> dict[str, Any]:
    """Return what a shard must have in common with a plan, in JSON's types."""
    names = plan.images.names
    return {**plan.made_by, "shard": str(shard), "list of images": f"{len(names)}, SHA-256 {digest(names)}"}


def _find_damage(plan: EmbeddingPlan, path: Path, shard: Shard, manifest: Mapping[str, Any]) -> str | None:
    """Say why a finished shard must be embedded again, if it must."""
    if not path.is_file():
        return f"{path}, the rows of shard {shard}, is missing; embed that shard again"
    if sha256_of(path) != manifest["sha256"]:
        return f"{path} is damaged: its checksum isn't that of its manifest; embed shard {shard} again"
    if _digest_slice(plan, shard) != manifest["slice"]:
        return (
            f"images of {plan.images.title} have changed since shard {shard} was embedded ({path}); "
            "embed that shard again"
        )
    return None


def _summarize(manifests: Sequence[Mapping[str, Any]]) -> FolderEmbedding:
    return FolderEmbedding(
        [name for manifest in manifests for name in manifest["paths"]],
        [(image["path"], image["reason"]) for manifest in manifests for image in manifest["skipped"]],
        reused=0,
        machines=sorted({manifest["machine"] for manifest in manifests}),
    )


def _digest_slice(plan: EmbeddingPlan, shard: Shard) -> str:
    """Digest the names and sizes of a shard's images: equal for a copy of them on another machine."""
    items = [item for chunk in shard.chunks(len(plan)) for item in plan.items(chunk)]
    return digest(plan.images.states(items, with_time=False))


def _describe_machine(device: torch.device) -> str:
    """Describe what the last bits of an embedding depend on: the processor, its threads, and torch."""
    kind = (
        f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    )
    if device.type == "cuda":
        kind = torch.cuda.get_device_name(device)
    return f"{device.type} {kind}, torch {torch.__version__}"
