"""Download a published data set, if the owners allow this, and unpack it."""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from dml_core import DmlError
from dml_train.data.published.official import Archive, find_file, list_missing
from dml_train.data.published.sets import get_official
from dml_train.files import WriteRefused
from dml_train.progress import stage

_TIMEOUT = 30.0  # seconds to wait for data
_UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError,
    OSError,
)  # fmt: skip


def fetch_dataset(name: str, root: str | Path, *, report: Callable[[str], None] = print) -> None:
    """Download and unpack a published data set into the folder `root`, reusing existing files.

    See `check_dataset` for `name` and `report`; progress goes to the error stream. Raise a
    `DmlError` if the name is unknown, a file must be downloaded by hand, a download or an archive
    is bad, or an existing data set is incomplete.
    """
    official, root = get_official(name), Path(root).expanduser()
    folder, missing = None, []
    with contextlib.suppress(DmlError):  # the data set isn't downloaded or unpacked yet
        folder = official.find(root)
        missing = list_missing(official.list_parts(folder))
        if not missing:
            report(f"{official.title} is already in {folder}")
            return
    if missing and folder != root:  # `unpack` doesn't overwrite a folder
        raise DmlError(
            f"{folder} exists, but {len(missing):,} images are missing, e.g. {missing[0]}: rename "
            "or remove this folder, and fetch again"
        )
    archives = official.archives
    if by_hand := [
        a.name for a in archives if a.address is None and find_file(root, a.name) is None
    ]:
        raise DmlError(
            f"{root} doesn't contain {' and '.join(by_hand)}. {official.describe_download(root)}"
        )
    for file, archive in [(_get_archive(archive, root, report), archive) for archive in archives]:
        if archive.unpacks:
            report(f"unpacking {file}")
            report(f"unpacked {', '.join(map(str, unpack(file, file.parent)))}")


def _get_archive(archive: Archive, root: Path, report: Callable[[str], None]) -> Path:
    """Find or download an archive, and verify the checksum if one is published."""
    if (existing := find_file(root, archive.name)) is not None:
        report(f"{existing} already exists")
        _check_md5(existing, archive.md5)
        return existing
    assert archive.address is not None
    file = root / archive.name
    report(f"downloading {archive.address} ({archive.size})")
    sha256 = download(archive.address, file, archive.md5)
    checked = "its MD5 is correct" if archive.md5 else "no checksum is published"
    report(f"downloaded {file}; SHA-256 {sha256}; {checked}")
    return file


def download(address: str, file: Path, md5: str | None = None) -> str:
    """Download a file with http or https, and return the SHA-256 in hexadecimal digits.

    The download is named temporarily until it is complete and the MD5, if given, is verified. Raise
    a `DmlError` and remove the download if the server rejects the request, the connection breaks,
    or the MD5 is wrong.
    """
    import requests  # imported here, since the import takes a tenth of a second

    part = file.with_name(f"{file.name}.part")
    console = Console(stderr=True)
    console.quiet = not console.is_terminal
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with (
            requests.get(address, stream=True, timeout=_TIMEOUT) as response,
            part.open("wb") as out,
        ):
            response.raise_for_status()
            megabytes = int(response.headers.get("Content-Length", 0)) >> 20
            with stage(console, f"{file.name}, MB", megabytes) as show:
                for done, block in enumerate(response.iter_content(1 << 20), start=1):
                    out.write(block)
                    show(done, "")
        _check_md5(part, md5)
        part.replace(file)
    except requests.exceptions.RequestException as error:
        raise DmlError(
            f"can't download {address}: {error}. Run the command again, or see docs/guide/data.md "
            "for the sources of the data set"
        ) from error
    except OSError as error:
        raise WriteRefused(f"can't write {part}: {error.strerror or error}") from error
    finally:
        if part.parent.is_dir():
            part.unlink(missing_ok=True)
    return _compute_digest(file, "sha256")


def _check_md5(file: Path, expected: str | None) -> None:
    if expected is not None and (md5 := _compute_digest(file, "md5")) != expected:
        raise DmlError(
            f"{file} has MD5 {md5}; expected {expected}. It is damaged, truncated or a different "
            "file: remove it and download it again; if the MD5 stays wrong, the server's file has "
            "changed"
        )


def _compute_digest(file: Path, algorithm: str) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, algorithm).hexdigest()


def unpack(archive: Path, into: Path) -> list[Path]:
    """Unpack a .zip file, or a tar file, into a temporary folder; then move the top-level entries
    into `into`.

    Return the paths of the entries. Raise a `DmlError` and remove unpacked files if the archive
    can't be read, a path in the archive leads out of the folder, a top-level entry already exists,
    or the disk is full.
    """
    aside = into / f".{archive.name}.unpacking"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(aside)  # zipfile removes ".." and a leading "/" from paths
        else:
            with tarfile.open(archive) as packed_tar:
                packed_tar.extractall(aside, filter="data")
        shutil.rmtree(aside / "__MACOSX", ignore_errors=True)
        moves = {entry: into / entry.name for entry in sorted(aside.iterdir())}
        for entry in moves.values():
            if entry.exists() or entry.is_symlink():
                raise DmlError(
                    f"{entry} already exists; it was not changed. If it is complete, keep it; if "
                    "not, rename or remove it and unpack again"
                )
        return [source.rename(entry) for source, entry in moves.items()]
    except _UNREADABLE as error:
        raise DmlError(
            f"can't unpack {archive} into {into} ({type(error).__name__}: {error}); nothing was "
            "unpacked. If the file is damaged or a web page, remove it and download it again; if "
            "it needs a password, unpack it by hand"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
