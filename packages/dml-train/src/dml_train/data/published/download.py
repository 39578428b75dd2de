"""Download of a file over HTTP, with its checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from dml_core import DmlError

_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without data
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())


def download(address: str, file: Path, *, md5: str | None = None, progress: bool = False) -> str:
    """Download a file, and return its SHA-256 in hexadecimal digits.

    The file gets its name when it is complete and its checksum is right. A download that fails leaves nothing.

    Args:
        address: http or https.
        file: the destination; its folder must exist.
        md5: the expected MD5; None skips the check.
        progress: whether to show a progress bar on the standard error.

    Raises:
        DmlError: if the address isn't one of http or https, the server refuses the request or closes the connection,
            the MD5 is wrong, or the file can't be written.
    """
    import requests  # takes a tenth of a second, which only downloads need

    if not address.startswith(("http://", "https://")):
        raise DmlError(f"can't download {address!r}: expected an address like https://host/file")
    part = file.with_name(f"{file.name}.part")
    try:
        with (
            requests.get(address, stream=True, timeout=_TIMEOUT) as response,
            part.open("wb") as out,
            Progress(*_COLUMNS, console=Console(stderr=True), disable=not progress) as bar,
        ):
            response.raise_for_status()
            length = response.headers.get("Content-Length")
            task = bar.add_task(file.name, total=None if length is None else int(length))
            for block in response.iter_content(_BLOCK):
                bar.update(task, advance=out.write(block))
        if md5 is not None and (found := compute_digest(part, "md5")) != md5:
            raise DmlError(
                f"{address} sent a file with the MD5 {found}; expected {md5}. Try again; if the MD5 stays wrong, the "
                "server's file was changed or damaged"
            )
        part.replace(file)
    except requests.exceptions.RequestException as error:
        raise DmlError(
            f"can't download {address}: {error}. Run the command again, or see docs/guide/data.md for the sources of "
            "the data set"
        ) from error
    except OSError as error:
        raise DmlError(f"can't write {part}: {error.strerror or error}") from error
    finally:
        if part.parent.is_dir():
            part.unlink(missing_ok=True)
    return compute_digest(file, "sha256")


def compute_digest(file: Path, algorithm: str) -> str:
    """Compute a file's checksum in hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, algorithm).hexdigest()
