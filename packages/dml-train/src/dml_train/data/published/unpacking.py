"""Unpacking of zip and tar archives: all or nothing, and no path outside the folder."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path

from dml_core import DmlError

_MACOS = ("__MACOSX", ".DS_Store")
_UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError,
)  # fmt: skip


def unpack(archive: Path, into: Path) -> list[Path]:
    """Unpack an archive aside, and move its top-level entries into a folder when all are complete.

    Args:
        archive: a zip file (with this suffix), or a tar file, compressed or not.
        into: the folder, created if missing.

    Returns:
        The new entries, sorted by name.

    Raises:
        DmlError: if the archive can't be read, a path in it leads out of the folder, a top-level entry already exists,
            or the disk is full. Nothing of the archive then remains.
    """
    aside = into / f".{archive.name}.unpacking"
    try:
        into.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(aside)  # leaves out ".." and a leading "/" of paths
            else:
                with tarfile.open(archive) as packed_tar:
                    packed_tar.extractall(aside, filter="data")
                    # The compression's checksum stands at the end of the file, which the last member may not reach.
                    while packed_tar.fileobj is not None and packed_tar.fileobj.read(1 << 20):
                        pass
        except _UNREADABLE as error:
            raise DmlError(
                f"can't unpack {archive} ({type(error).__name__}: {error}); nothing was unpacked. If the file is "
                "damaged or a web page, remove it and download it again; if it needs a password, unpack it by hand"
            ) from error
        for junk in [path for name in _MACOS for path in aside.rglob(name)]:
            shutil.rmtree(junk) if junk.is_dir() else junk.unlink()
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
    except OSError as error:
        raise DmlError(f"can't unpack {archive} into {into}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
