"""Unpacking of zip and tar archives: all or nothing, and no path outside the folder."""

from __future__ import annotations

import gzip
import lzma
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
    plain: bool  # a file or a folder, not a link or a device
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, into: Path) -> list[Path]:
    """Unpack an archive aside, and move its top-level entries into a folder when all are complete.

    Args:
        archive: a zip file, or a tar file, compressed or not.
        into: the folder, created if missing.

    Returns:
        The new entries, sorted by name.

    Raises:
        DmlError: if it isn't an archive, is damaged (checksums are compared), needs a password or an unknown method; if
            a path in it leads out of the folder or is a link; if a top-level entry already exists; if the disk is full.
            Then nothing of it remains.
    """
    aside = into / f".{archive.name}.unpacking"
    try:
        into.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        with _open(archive, aside) as members:
            for member in members:
                _write(member, archive, aside)
        entries = sorted(into / entry.name for entry in aside.iterdir())
        for entry in entries:
            if entry.exists() or entry.is_symlink():
                raise DmlError(
                    f"{entry} already exists; nothing was unpacked. If it is complete, keep it; if not, rename or "
                    "remove it and unpack again"
                )
        for entry in entries:
            (aside / entry.name).rename(entry)
        return entries
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        gzip.BadGzipFile,
        EOFError,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise DmlError(
            f"{archive} is damaged or truncated ({type(error).__name__}: {error}); nothing was unpacked. Remove it and "
            "download it again"
        ) from error
    except NotImplementedError as error:
        raise DmlError(
            f"{archive} uses a compression that Python can't read ({error}); nothing was unpacked. Unpack it with "
            "another program, and keep the folder beside it"
        ) from error
    except OSError as error:
        if archive.suffix == ".bz2" and error.errno is None:  # bz2 has no error of its own for damaged data
            raise DmlError(
                f"{archive} is damaged ({error}); nothing was unpacked. Download it again"
            ) from error
        raise DmlError(f"can't unpack {archive} into {into}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(member: _Member, archive: Path, folder: Path) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        raise DmlError(
            f"{archive} contains the path {member.name!r}, which leads out of the folder; nothing was unpacked"
        )
    if not path.parts and not member.folder:  # a folder may be "./", the root itself
        raise DmlError(f"{archive} contains an entry without a name; nothing was unpacked. Download it again")
    if not member.plain:
        raise DmlError(
            f"{archive} contains {member.name!r}, which is a link or a device, not a file; nothing was unpacked"
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
def _open(archive: Path, into: Path) -> Iterator[Iterator[_Member]]:
    if not archive.is_file():
        raise DmlError(f"there is no archive {archive}")
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            yield _list_zip(packed, archive)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed_tar:
            yield _list_tar(packed_tar, into)
            # The compression's checksum stands at the end of the file, which the last member may not reach.
            while packed_tar.fileobj is not None and packed_tar.fileobj.read(1 << 20):
                pass
    else:
        with archive.open("rb") as content:
            start = content.read(60)
        raise DmlError(
            f"{archive} is neither a zip nor a tar archive; it begins with {start!r}. If this is a web page, "
            "the site may want a login or a confirmation: remove the file and download it by hand"
        )


def _list_zip(archive: zipfile.ZipFile, file: Path) -> Iterator[_Member]:
    for info in archive.infolist():
        if info.flag_bits & 1:
            raise DmlError(
                f"{file} needs a password, which its owners give on request: unpack it with the password, and keep "
                "the folder beside it"
            )
        kind = stat.S_IFMT(info.external_attr >> 16)  # 0 if it wasn't packed on Unix

        def content(info: zipfile.ZipInfo = info) -> IO[bytes]:
            return archive.open(info)

        yield _Member(info.filename, info.is_dir(), kind in (0, stat.S_IFREG, stat.S_IFDIR), content)


def _list_tar(archive: tarfile.TarFile, into: Path) -> Iterator[_Member]:
    for info in archive:

        def content(info: tarfile.TarInfo = info) -> IO[bytes]:
            if hasattr(
                tarfile, "data_filter"
            ):  # a second guard against paths that lead out, since Python 3.11.4
                tarfile.data_filter(info, str(into))
            opened = archive.extractfile(info)
            assert opened is not None  # `_write` opens plain files only
            return opened

        yield _Member(info.name, info.isdir(), info.isdir() or info.isreg(), content)
