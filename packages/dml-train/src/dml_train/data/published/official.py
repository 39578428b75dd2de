"""Describe a published data set (layout, counts and sources), and find it on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dml_core import DmlError
from dml_train.data.parts import Parts, check_parts, count_images


class Archive(NamedTuple):
    """A file to download, and to unpack into the data set's folder."""

    name: str
    size: str  # approximate, for messages
    address: str | None = None  # None if users must download it by hand, see `OfficialSet.by_hand`
    md5: str | None = None  # None if it isn't published
    unpacks: bool = True  # False for a plain file


@dataclass(frozen=True, slots=True)
class OfficialSet:
    """A published data set."""

    name: str  # name in recipes
    title: str  # name in messages
    markers: tuple[str, ...]  # any of these files or folders identifies the data set's folder
    list_parts: Callable[
        [Path], Parts
    ]  # reads the lists in the folder, but doesn't check the images
    published: Mapping[
        str, tuple[int, int]
    ]  # numbers of images and classes per part, as in the papers
    archives: tuple[Archive, ...]
    by_hand: str = ""  # instructions for a download by hand; empty if none is needed

    def read(self, root: str) -> Parts:
        """List the parts in `root`, the data set's folder or the parent folder.

        Raise a `DmlError` if images are missing, lists are damaged, or counts differ from the
        published counts.
        """
        folder = self.find(Path(root))
        parts = self.list_parts(folder)
        check_parts(parts, {part: f"the {part} part of {folder}" for part in parts.by_name()})
        if missing := list_missing(parts):
            total = sum(map(count_images, parts.by_name().values()))
            raise DmlError(
                f"{len(missing):,} of the {total:,} images in the lists of {folder} are missing, "
                f"e.g. {missing[0]}: the data set is incompletely unpacked. "
                f"{self.describe_download(Path(root))}"
            )
        if wrong := self.find_wrong_counts(parts):
            raise DmlError(
                f"{folder} is not the complete {self.title}: {'; '.join(wrong)}. Results on other "
                "images can't be compared with published results: unpack it again, or use "
                "image-folder or csv for your images"
            )
        return parts

    def find(self, root: Path) -> Path:
        """Find the data set's folder, `root` or a subfolder, or raise a `DmlError` with download
        instructions.
        """
        root = root.expanduser()
        if not root.is_dir():
            raise DmlError(f"root = {root} is not a folder. {self.describe_download(root)}")
        for folder in (root, *sorted(child for child in root.iterdir() if child.is_dir())):
            if any((folder / marker).exists() for marker in self.markers):
                return folder
        if packed := [archive.name for archive in self.archives if find_file(root, archive.name)]:
            raise DmlError(
                f"{root} contains {' and '.join(packed)}, but {self.title} isn't unpacked: "
                f"run dml data fetch {self.name} --root {root}"
            )
        raise DmlError(
            f"{self.title} is not in {root}: neither this folder nor a subfolder contains "
            f"{' or '.join(self.markers)}. {self.describe_download(root)}"
        )

    def describe_download(self, root: Path) -> str:
        """Describe the files to download with sources and sizes, for messages."""
        files = ", ".join(f"{archive.name} ({archive.size})" for archive in self.archives)
        if self.by_hand:
            return f"{self.title} comes as {files}. {self.by_hand}"
        sources = " and ".join(archive.address or "" for archive in self.archives)
        return (
            f"{self.title} comes as {files} from {sources}: dml data fetch {self.name} --root "
            f"{root} downloads it"
        )

    def find_wrong_counts(self, parts: Parts) -> list[str]:
        """Describe the parts with counts that differ from the published counts."""
        counts = {
            part: (count_images(classes), len(classes)) for part, classes in parts.by_name().items()
        }
        return [
            f"{part} has {counts[part][0]:,} images of {counts[part][1]:,} classes "
            f"(published: {images:,} of {classes:,})"
            for part, (images, classes) in self.published.items()
            if counts[part] != (images, classes)
        ]


def find_file(root: Path, name: str) -> Path | None:
    """Find a file by name in a folder, or up to 2 levels deeper; return None if there is none."""
    found = (
        file
        for pattern in (name, f"*/{name}", f"*/*/{name}")
        for file in sorted(root.glob(pattern))
    )
    return next(found, None)


def list_missing(parts: Parts) -> list[Path]:
    """List the files of the parts that don't exist."""
    return [file for file in parts.files() if isinstance(file, Path) and not file.is_file()]


def read_lines(file: Path, columns: int, skip: int = 0) -> list[list[str]]:
    """Read a list in UTF-8 after `skip` header lines, and split lines at blanks into columns.

    The last column may contain blanks. Raise a `DmlError` if the file can't be read or is empty, or
    columns are missing; the message names the line.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DmlError(
            f"can't read {file} as a list in UTF-8: {error}; unpack the archive again"
        ) from error
    rows = []
    for number, line in enumerate(lines[skip:], start=skip + 1):
        row = line.strip().split(maxsplit=columns - 1)
        if row and len(row) < columns:
            raise DmlError(
                f"{file}, line {number}: {line!r} contains {len(row)} columns; expected {columns}. "
                "The file is damaged: unpack the archive again"
            )
        if row:
            rows.append(row)
    if not rows:
        raise DmlError(f"{file} is empty; unpack the archive again")
    return rows


def parse_number(value: str, file: Path) -> int:
    """Parse a natural number in a list; raise a `DmlError` that names the file if it isn't."""
    if not value.isdecimal():
        raise DmlError(
            f"{file} contains {value!r}; expected a number. The file is damaged: unpack the "
            "archive again"
        )
    return int(value)
