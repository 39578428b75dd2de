"""The published data sets: what they must hold, where they come from, and how one is found on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dml_core import DmlError
from dml_train.data.parts import Parts, count, refuse_unfit


class Published(NamedTuple):
    """What the papers say that a part holds."""

    images: int
    classes: int


class Archive(NamedTuple):
    """A file that a data set is downloaded as. It is unpacked where it lies.

    Args:
        name: of the file.
        size: about how big, for people.
        address: where it is downloaded from; None where a person must, as `OfficialSet.by_hand` says.
        md5: its checksum; None if none is known.
        unpacks: whether it is an archive; else it is used as it is.
    """

    name: str
    size: str
    address: str | None = None
    md5: str | None = None
    unpacks: bool = True


@dataclass(frozen=True, slots=True)
class OfficialSet:
    """A published data set in the layout of its download.

    Args:
        name: as recipes name it.
        title: as people do.
        markers: files by which its folder is known, relative to it; any one of them.
        list_parts: what the lists in the folder say, the images unseen.
        published: what each part must hold.
        archives: what it is downloaded as.
        older: further files in which people have it.
        by_hand: what a person must do to get it; empty if nothing.
    """

    name: str
    title: str
    markers: tuple[str, ...]
    list_parts: Callable[[Path], Parts]
    published: Mapping[str, Published]
    archives: tuple[Archive, ...]
    older: tuple[Archive, ...] = ()
    by_hand: str = ""

    def find(self, root: Path) -> Path:
        """The data set's folder: `root`, or the one folder in `root` that is it.

        Raises:
            DmlError: if it isn't there, with what to download, from where, and how big it is.
        """
        root = root.expanduser()
        if not root.is_dir():
            raise DmlError(f"root = {root} is not a folder. {self.how_to_get(root)}")
        inside = sorted(child for child in root.iterdir() if child.is_dir())
        for folder in (root, *inside):
            if any((folder / marker).is_file() for marker in self.markers):
                return folder
        known = [archive.name for archive in (*self.archives, *self.older)]
        packed = [name for name in known if within(root, name) is not None]
        if packed:
            raise DmlError(
                f"{root} holds {' and '.join(packed)}, but {self.title} isn't unpacked there: "
                f"dml data fetch {self.name} --root {root} does that"
            )
        raise DmlError(
            f"{self.title} is not in {root}: neither it nor a folder in it holds {' or '.join(self.markers)}. "
            f"{self.how_to_get(root)}"
        )

    def how_to_get(self, root: Path) -> str:
        """What to download, from where, how big."""
        files = ", ".join(f"{archive.name} ({archive.size})" for archive in self.archives)
        if self.by_hand:
            return f"{self.title} comes as {files}. {self.by_hand}"
        sources = " and ".join(archive.address or "" for archive in self.archives)
        return f"{self.title} comes as {files} from {sources}: dml data fetch {self.name} --root {root} downloads it"

    def read(self, root: str) -> Parts:
        """The parts, every image there and as many as published.

        Raises:
            DmlError: what `find` raises; images that the lists name and that aren't there; other counts than the
                published ones.
        """
        folder = self.find(Path(root))
        parts = self.list_parts(folder)
        refuse_unfit(parts, {part: f"the {part} part of {folder}" for part in parts.named()})
        missing, total = missing_files(parts), sum(map(count, parts.named().values()))
        if missing:
            raise DmlError(
                f"{len(missing):,} of the {total:,} images that the lists of {folder} name aren't there, e.g. "
                f"{missing[0]}: the data set is unpacked by halves. {self.how_to_get(Path(root))}"
            )
        if wrong := self.differences(parts):
            raise DmlError(
                f"{folder} is not the whole of {self.title}: {'; '.join(wrong)}. Figures on another set can't be "
                "put beside the published ones: complete it, or name your own images by image-folder or csv"
            )
        return parts

    def differences(self, parts: Parts) -> list[str]:
        """Where the counts aren't the published ones, in words."""
        found = []
        for part, published in self.published.items():
            classes = parts.named()[part]
            here = Published(count(classes), len(classes))
            if here != published:
                found.append(
                    f"{part} has {here.images:,} images of {here.classes:,} classes, published are "
                    f"{published.images:,} of {published.classes:,}"
                )
        return found


def within(root: Path, name: str) -> Path | None:
    """The file of this name in a folder, or in one at most two levels below it; None if there is none."""
    found = (file for pattern in (name, f"*/{name}", f"*/*/{name}") for file in sorted(root.glob(pattern)))
    return next(found, None)


def missing_files(parts: Parts) -> list[Path]:
    """The files that the parts name and that aren't there."""
    return [
        file
        for classes in parts.named().values()
        for files in classes.values()
        for file in files
        if not file.is_file()
    ]


def read_lines(file: Path, columns: int, skip: int = 0) -> list[list[str]]:
    """The lines of a list, split at blanks into so many columns, the last of which may hold blanks.

    Args:
        file: the list, in UTF-8.
        columns: how many.
        skip: lines of heading.

    Raises:
        DmlError: if it isn't there, is empty, or a line has fewer columns, with its number.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DmlError(
            f"can't read {file}: {error.strerror}; the data set isn't wholly unpacked there"
        ) from error
    except UnicodeDecodeError as error:
        raise DmlError(f"{file} is not a list in UTF-8 ({error}); unpack it again") from error
    rows = []
    for number, line in enumerate(lines[skip:], start=skip + 1):
        if not line.strip():
            continue
        row = line.split(maxsplit=columns - 1)
        if len(row) < columns:
            raise DmlError(
                f"{file}, line {number}: {line!r} has {len(row)} columns; expected {columns}. "
                "The file is damaged: unpack it again"
            )
        rows.append([value.strip() for value in row])
    if not rows:
        raise DmlError(f"{file} lists nothing; unpack it again")
    return rows


def whole(value: str, file: Path) -> int:
    """A number of a list.

    Raises:
        DmlError: if it isn't one.
    """
    if not value.isdecimal():
        raise DmlError(f"{file}: {value!r} where a number was expected. The file is damaged: unpack it again")
    return int(value)
