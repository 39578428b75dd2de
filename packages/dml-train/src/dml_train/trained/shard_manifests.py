"""The shards of an embedding and their manifests: which belong together, and what is wrong with one that does not.

A manifest is a JSON file beside a shard's rows. The checks name the shard that fails, before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dml_core import DmlError, InvalidOption
from dml_train.checksums import sha256_of
from dml_train.files import read_json
from dml_train.trained.folder import chunks_folder
from dml_train.trained.plan import EmbeddingPlan

_KEYS = {"shard", "of", "made_by", "images", "list", "slice", "machine", "sha256", "paths", "skipped"}


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


def make_manifest(
    plan: EmbeddingPlan,
    shard: Shard,
    rows: Path,
    kept: Sequence[str],
    skipped: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Describe a finished shard: what its rows depend on, and digests of its rows and of the images."""
    return {
        "shard": shard.index,
        "of": shard.count,
        "made_by": plan.made_by,
        "images": len(plan.images.names),
        "list": _digest(plan.images.names),
        "slice": _digest_slice(plan, shard),
        "machine": _machine(plan),
        "sha256": sha256_of(rows),
        "paths": kept,
        "skipped": [{"path": name, "reason": reason} for name, reason in skipped],
    }


def find_manifests(out: Path) -> dict[Path, dict[str, Any]]:
    """Read the manifests of a file's shards, by the paths of their rows."""
    names = re.compile(re.escape(out.stem) + r"\.shard-\d+-of-\d+\.json")
    folder = out.parent
    files = sorted(path for path in folder.iterdir() if names.fullmatch(path.name)) if folder.is_dir() else []
    if not files and not _unfinished(out):
        raise DmlError(
            f"{folder} holds no shards of {out.name}: no file {out.stem}.shard-I-of-N.json; "
            "embed each of them first, with --shard I/N"
        )
    return {file.with_suffix(out.suffix): read_manifest(file) for file in files}


def read_manifest(file: Path) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        DmlError: if it is corrupt.
    """
    manifest = read_json(file)
    if missing := _KEYS - manifest.keys():
        raise DmlError(f"{file} is corrupt: it lacks {min(missing)!r}; remove it, and embed that shard again")
    return manifest


def refuse_foreign(plan: EmbeddingPlan, path: Path, manifest: Mapping[str, Any]) -> None:
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


def common_count(out: Path, manifests: Mapping[Path, Mapping[str, Any]]) -> int:
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


def refuse_doubled(manifests: Mapping[Path, Mapping[str, Any]]) -> dict[int, Path]:
    """Return the path of each shard by its index."""
    found: dict[int, Path] = {}
    for path, manifest in manifests.items():
        if (other := found.setdefault(manifest["shard"], path)) != path:
            raise DmlError(
                f"{other} and {path} both hold shard {manifest['shard']}/{manifest['of']}; remove one of them"
            )
    return found


def refuse_missing(out: Path, missing: Sequence[Shard]) -> None:
    """Refuse to join without these shards, unless there are none.

    Raises:
        DmlError: that names them, and those that some process began.
    """
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


def refuse_damaged(plan: EmbeddingPlan, shard: Shard, path: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a shard whose rows are missing or corrupt, or whose images have changed since.

    Raises:
        DmlError: that names it.
    """
    if not path.is_file():
        raise DmlError(f"{path}, the rows of shard {shard}, is missing; embed that shard again")
    if sha256_of(path) != manifest["sha256"]:
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
