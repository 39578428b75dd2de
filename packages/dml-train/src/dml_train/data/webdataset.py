"""Samples of WebDataset archives: the members of plain tar files whose names are equal up to the
first dot.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_core import DmlError, nearest
from dml_train.data.decoding import SUFFIXES
from dml_train.data.stored import PathTable, TarMembers


class _Sample(NamedTuple):
    """The members of a sample by extension, and the values that members contain."""

    members: dict[str, tarfile.TarInfo]
    values: dict[str, Any]


def read_archives(
    files: Sequence[Path], image: str, names: Mapping[str, str]
) -> tuple[TarMembers, dict[str, list[Any]]]:
    """Index the images in archives, and read the columns that `names` lists; missing values are
    None.

    The value of a column is the text of the member with this extension, or the value in the member
    ``.json``; the label may also be in the member ``.cls``. Only headers and these members are
    read.

    Raises:
        DmlError: if an archive is truncated or compressed, a key names two samples, or a sample
            lacks an image.
    """
    wanted = {*names.values(), "cls"}
    found: list[tarfile.TarInfo] = []
    values: list[dict[str, Any]] = []
    ends = []
    known: set[str] = set()
    for file in files:
        for key, sample in _read_archive(file, wanted).items():
            kinds = (
                [image]
                if image != "image"
                else [kind for kind in sample.members if f".{kind}" in SUFFIXES]
            )
            if not kinds or kinds[0] not in sample.members:
                raise DmlError(
                    f"{file}: the sample {key!r} lacks an image; it has: "
                    f"{', '.join(sample.members)}; dataset.image names the extension, by default "
                    f"any of {', '.join(sorted(SUFFIXES))}"
                )
            found.append(sample.members[kinds[0]])
            values.append({name: value for name, value in sample.values.items() if name in wanted})
            known |= sample.values.keys()
        ends.append(len(found))
    columns = {}
    for meaning, name in names.items():
        read = "cls" if name == "label" and "label" not in known else name
        if read in known:
            columns[meaning] = [row.get(read) for row in values]
        elif found and (meaning == "label" or name not in ("", meaning)):
            raise DmlError(
                f"{files[0]} lacks the column {name!r}{nearest(name, known)} it has: "
                f"{', '.join(sorted(known))}; dataset.{meaning} names the extension, or the value "
                "in .json"
            )
    places = np.array(
        [(member.offset_data, member.size) for member in found], dtype=np.int64
    ).reshape(-1, 2)
    return TarMembers(
        files, ends, PathTable(Path(member.name) for member in found), places
    ), columns


def _read_archive(file: Path, wanted: set[str]) -> dict[str, _Sample]:
    """Read the samples of an archive by key, with the text of `wanted` members and the values in
    .json.
    """
    samples: dict[str, _Sample] = {}
    try:
        with tarfile.open(file, "r:") as archive:
            for entry in archive:
                folder, slash, name = entry.name.rpartition("/")
                key, _, kind = name.lower().partition(".")
                if not entry.isreg() or not kind or not key:
                    continue
                sample = samples.setdefault(folder + slash + name[: len(key)], _Sample({}, {}))
                if kind in sample.members:
                    raise DmlError(
                        f"{file} contains two members {entry.name!r}; a key must name one sample: "
                        "rename or remove one"
                    )
                sample.members[kind] = entry
                content = archive.extractfile(entry) if kind in wanted or kind == "json" else None
                if content is not None:
                    text = content.read().decode()
                    sample.values.update(
                        json.loads(text) if kind == "json" else {kind: text.strip()}
                    )
            # tarfile accepts an archive that ends after a member, but a complete one ends with
            # empty blocks.
            archive.fileobj.seek(archive.offset)
            if not archive.fileobj.read(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("unexpected end of data")
    except (tarfile.TarError, OSError, ValueError, TypeError) as error:
        raise DmlError(
            f"can't read the archive {file}: {error}; expected a complete, uncompressed tar with "
            "text or JSON in UTF-8 (gunzip, xz -d or zstd -d unpack a compressed one)"
        ) from error
    return samples
