"""Embed in shards: machines embed slices of the chunks, and the joined file is identical to a
single process's.

Shard I of N holds chunks ``I · C // N`` to ``(I + 1) · C // N`` of all C chunks. An interrupted
shard resumes. A finished shard consists of the rows, ``NAME.shard-I-of-N.npy``, and a manifest,
``NAME.shard-I-of-N.json``.
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
    index_path,
    list_skipped,
    write_embedding,
    write_rows,
)
from dml_train.trained.plan import EmbeddingPlan, Engine, FolderEmbedding, digest

_KEYS = {"made_by", "slice", "machine", "sha256", "paths", "skipped"}
_MOST_LISTED = 10  # missing shards in an error message


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of the images, number `index` of `count`; raise InvalidOption unless 0 <= index <
    count.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InvalidOption(
                f"the shard is {self}; expected I/N with I from 0 to N - 1, such as 0/2"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def read(cls, text: str) -> Shard:
        """Read ``I/N``; raise InvalidOption for any other text."""
        found = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        if found is None:
            raise InvalidOption(f"the shard is {text!r}; expected I/N with numbers, such as 0/8")
        return cls(int(found[1]), int(found[2]))

    def chunks(self, total: int) -> range:
        """Return the numbers of this shard's chunks, if there are `total` chunks."""
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)

    def path(self, out: Path) -> Path:
        """Return the path of this shard's rows."""
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
    """Embed a shard of a plan's images into files next to `out`, which `join_shards` writes; see
    `embed_images`.

    Shards can be empty if there are more shards than chunks. Raise DmlError if an image can't be
    decoded, the disk is full, another process embeds this shard, or a finished shard is from a
    different embedding. Finished chunks are kept.
    """
    path, chunks = shard.path(Path(out)), shard.chunks(len(plan))
    if index_path(path).is_file():
        manifest = _read_manifest(plan, path, shard)
        if _find_damage(plan, path, shard, manifest) is None:
            return replace(_summarize([manifest]), reused=plan.count(chunks))
    store = ChunkStore(path, plan, chunks)
    with store.filled(
        engine, doing=f"embedding shard {shard} of {out}", skip=skip, console=console
    ) as done:
        write_atomically(path, lambda file: write_rows(file, plan, len(done.paths), store.parts()))
        manifest = {
            "made_by": _made_by(plan, shard),
            "slice": _digest_slice(plan, shard),
            "machine": _describe_machine(plan.model.device),
            "sha256": sha256_of(path),
            "paths": done.paths,
            "skipped": list_skipped(done),
        }
        write_json(
            index_path(path), manifest
        )  # last, so that the rows exist when the manifest does
    return done


def join_shards(
    plan: EmbeddingPlan, out: Path | str, *, labels: Path | str | None = None
) -> FolderEmbedding:
    """Join the shards of `out` into the files that `embed_images` would have written, and keep the
    shards.

    The result counts all images as reused. If its `machines` has a single entry, the files have the
    same bits as from a single process. Raise DmlError, before anything is written, if a shard is
    missing, unfinished, damaged, or made from a different run, checkpoint, kind, list of images or
    number of shards.
    """
    out = Path(out)
    shards = _find_shards(out)
    manifests = [_read_manifest(plan, shard.path(out), shard) for shard in shards]
    for shard, manifest in zip(shards, manifests):
        if (damage := _find_damage(plan, shard.path(out), shard, manifest)) is not None:
            raise DmlError(damage)
    done = replace(_summarize(manifests), reused=len(plan.images.names))
    if labels is not None:
        plan.images.labels(done.paths)  # fail before anything is written if labels can't be made
    write_embedding(plan, out, done, (read_array(shard.path(out)) for shard in shards), labels)
    return done


def _find_shards(out: Path) -> list[Shard]:
    """Return the shards of a file; raise DmlError unless all are finished and agree on the number
    of shards.
    """
    folder = out.parent
    pattern = re.compile(re.escape(out.stem) + r"\.shard-(\d+)-of-(\d+)\.json")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = {(int(name[1]), int(name[2])) for name in map(pattern.fullmatch, names) if name}
    if not found:
        raise DmlError(
            f"{folder} doesn't contain finished shards of {out.name} "
            f"({out.stem}.shard-I-of-N.json); embed each shard first, with --shard I/N"
        )
    counts = sorted({count for _, count in found})
    if len(counts) > 1:
        raise DmlError(
            f"{folder} contains shards of {out.name} from divisions into "
            f"{' and into '.join(map(str, counts))} shards; keep only the shards of one division"
        )
    shards = [Shard(index, counts[0]) for index in range(counts[0])]
    missing = [str(shard) for shard in shards if (shard.index, shard.count) not in found]
    if missing:
        more = f" and {len(missing) - _MOST_LISTED} more" if len(missing) > _MOST_LISTED else ""
        raise DmlError(
            f"{out} can't be joined: the shards {', '.join(missing[:_MOST_LISTED])}{more} are "
            "missing or unfinished; run each with --shard I/N first"
        )
    return shards


def _read_manifest(plan: EmbeddingPlan, path: Path, shard: Shard) -> dict[str, Any]:
    """Read a shard's manifest; raise DmlError if it is corrupt, or describes a different shard or
    embedding.
    """
    file = index_path(path)
    manifest = read_json(file)
    if missing := _KEYS - manifest.keys():
        raise DmlError(
            f"{file} is corrupt: {min(missing)!r} is missing; remove it and embed the shard again"
        )
    for key, expected in json.loads(json.dumps(_made_by(plan, shard))).items():
        if (came := manifest["made_by"].get(key)) != expected:
            raise DmlError(
                f"{path} belongs to a different embedding: {key} is {came!r}; expected "
                f"{expected!r}, as in the run in {plan.model.folder.path} at step "
                f"{plan.model.step}. Remove it, and embed that shard again"
            )
    return manifest


def _made_by(plan: EmbeddingPlan, shard: Shard) -> dict[str, Any]:
    """Return the settings, in JSON's types, that must be equal for a shard and a plan."""
    names = plan.images.names
    return {
        **plan.made_by,
        "shard": str(shard),
        "list of images": f"{len(names)}, SHA-256 {digest(names)}",
    }


def _find_damage(
    plan: EmbeddingPlan, path: Path, shard: Shard, manifest: Mapping[str, Any]
) -> str | None:
    """Return why a finished shard should be embedded again; None if it is intact and up to date."""
    if not path.is_file():
        return f"{path}, the rows of shard {shard}, is missing; embed that shard again"
    if sha256_of(path) != manifest["sha256"]:
        return (
            f"{path} is damaged: the checksum differs from the manifest; embed shard {shard} again"
        )
    # Compare only names and sizes, since the file times of a copy on a different machine may
    # differ.
    if _digest_slice(plan, shard) != manifest["slice"]:
        return (
            f"images in {plan.images.title} changed since {path} was embedded; embed shard {shard} "
            "again"
        )
    return None


def _summarize(manifests: Sequence[Mapping[str, Any]]) -> FolderEmbedding:
    return FolderEmbedding(
        [name for manifest in manifests for name in manifest["paths"]],
        [
            (image["path"], image["reason"])
            for manifest in manifests
            for image in manifest["skipped"]
        ],
        machines=sorted({manifest["machine"] for manifest in manifests}),
    )


def _digest_slice(plan: EmbeddingPlan, shard: Shard) -> str:
    """Return a digest of the names and sizes of a shard's images."""
    items = [item for chunk in shard.chunks(len(plan)) for item in plan.items(chunk)]
    return digest(plan.images.states(items, with_time=False))


def _describe_machine(device: torch.device) -> str:
    """Describe processor, threads and torch's version, since the last bits of an embedding depend
    on them.
    """
    if device.type == "cuda":
        kind = torch.cuda.get_device_name(device)
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        kind = f"{platform.machine()} {capability}, {torch.get_num_threads()} threads"
    return f"{device.type} {kind}, torch {torch.__version__}"
