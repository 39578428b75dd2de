"""Unpacking zip and tar archives: no path leaves the folder, and what is under its name is whole."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from dml_core import DmlError

_JUNK = {"__MACOSX", ".DS_Store"}


class _Member(NamedTuple):
    name: str
    folder: bool
    plain: bool  # a file or a folder, and not a link or a device
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, into: Path) -> list[Path]:
    """Unpack an archive into a folder; what is in its top level appears there when all of it is unpacked.

    Args:
        archive: a zip or tar file, the latter compressed or not.
        into: the folder, made if it isn't there.

    Returns:
        What has appeared, by name.

    Raises:
        DmlError: if it isn't an archive, is damaged or asks for a password; if a path in it leads out of the folder
            or is a link; if something of a name in its top level is there already; if the disk is full. Nothing is
            left of it then.
    """
    aside = into / f".{archive.name}.unpacking"
    try:
        into.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        with _open(archive) as members:
            for member in members:
                _write(member, archive, aside)
        appeared = sorted(into / entry.name for entry in aside.iterdir())
        for entry in appeared:
            if entry.exists() or entry.is_symlink():
                raise DmlError(
                    f"{entry} is there already; nothing was unpacked. If it is whole, there is nothing to do; if "
                    "not, rename or remove it and unpack again"
                )
        for entry in appeared:
            (aside / entry.name).rename(entry)
        return appeared
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DmlError(
            f"{archive} is damaged or cut off ({type(error).__name__}: {error}); nothing was unpacked. Remove it and "
            "download it again"
        ) from error
    except OSError as error:
        raise DmlError(f"can't unpack {archive} into {into}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(member: _Member, archive: Path, folder: Path) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        raise DmlError(
            f"{archive} holds the path {member.name!r}, which leads out of its folder; nothing was unpacked"
        )
    if not member.plain:
        raise DmlError(
            f"{archive} holds {member.name!r}, which is a link or a device and not a file; nothing was unpacked"
        )
    if _JUNK & {*path.parts}:
        return
    target = folder.joinpath(*path.parts)
    if member.folder:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with member.open() as content, target.open("wb") as out:
        shutil.copyfileobj(content, out, 1 << 20)


@contextmanager
def _open(archive: Path) -> Iterator[Iterator[_Member]]:
    if not archive.is_file():
        raise DmlError(f"there is no archive {archive}")
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            yield _zipped(packed, archive)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed_tar:
            yield _tarred(packed_tar)
    else:
        with archive.open("rb") as content:
            begins = content.read(60)
        raise DmlError(
            f"{archive} is neither a zip nor a tar archive; it begins with {begins!r}. If that is a page of a web "
            "site, the site wanted something of you: remove the file and download it by hand"
        )


def _zipped(archive: zipfile.ZipFile, file: Path) -> Iterator[_Member]:
    for info in archive.infolist():
        if info.flag_bits & 1:
            raise DmlError(
                f"{file} asks for a password, which its owners give on request: unpack it with that, and leave the "
                "folder beside it"
            )
        kind = stat.S_IFMT(info.external_attr >> 16)  # of what was packed on Unix; 0 elsewhere

        def content(info: zipfile.ZipInfo = info) -> IO[bytes]:
            return archive.open(info)

        yield _Member(info.filename, info.is_dir(), kind in (0, stat.S_IFREG, stat.S_IFDIR), content)


def _tarred(archive: tarfile.TarFile) -> Iterator[_Member]:
    for info in archive:

        def content(info: tarfile.TarInfo = info) -> IO[bytes]:
            opened = archive.extractfile(info)
            assert opened is not None  # it is a plain file
            return opened

        yield _Member(info.name, info.isdir(), info.isdir() or info.isreg(), content)
