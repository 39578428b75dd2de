"""Download of a file over HTTP: resumable, checked, and renamed when complete."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dml_core import DmlError

Progress = Callable[[int, int | None], None]  # (bytes received, total bytes if known)

_BLOCK = 1 << 20
_PERMANENT = frozenset({400, 401, 403, 404, 405, 410, 451})


@dataclass(frozen=True, slots=True)
class _Origin:
    """The source of a partial download, which resumes only if the source is unchanged."""

    address: str
    version: str | None  # the server's ETag, or else its modification date
    total: int | None  # bytes


class _Interrupted(Exception):
    """The transfer failed for a possibly temporary reason."""


def download(
    address: str,
    file: Path,
    *,
    md5: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    tries: int = 5,
    pause: float = 2.0,
) -> str:
    """Download a file, and return its SHA-256 in hexadecimal digits.

    Received bytes are kept in ``NAME.part``. A later call resumes there if the server supports it and still has the
    same file. When the file is complete, its checksum is compared, and it is renamed.

    Args:
        address: http or https.
        file: the destination; its folder must exist.
        md5: the expected MD5; None skips the check.
        progress: called after each block.
        timeout: seconds without data after which a connection is closed.
        tries: number of consecutive attempts without progress before giving up.
        pause: seconds before the second attempt; doubled before each further one.

    Raises:
        DmlError: the address isn't one of http or https, or leads to another kind; the server refuses the request;
            repeated interruptions (the received bytes are kept); a wrong MD5 (the received bytes are removed); a file
            that can't be written.
    """
    _check_address(address)
    part, failures = _Part(file), 0
    furthest = part.size
    try:
        while True:
            try:
                if _fetch(address, part, progress, timeout):
                    break
            except _Interrupted as error:
                # A part that was discarded must grow beyond what was there, or a faulty server could loop for ever.
                failures = 0 if part.size > furthest else failures + 1
                furthest = max(furthest, part.size)
                if failures >= tries:
                    raise DmlError(
                        f"can't download {address}: {error}, {tries} times without progress; {part.size:,} bytes "
                        f"are kept in {part.file}: run the command again to resume"
                    ) from error
                time.sleep(pause * 2 ** max(0, failures - 1) if failures else 0.0)
        digests = compute_digests(part.file)
        if md5 is not None and digests["md5"] != md5:
            part.remove()
            raise DmlError(
                f"{address} sent a file with the MD5 {digests['md5']}; expected {md5}. The download was removed: try "
                "again; if the MD5 stays wrong, the server's file was changed or damaged"
            )
        part.file.replace(file)
        part.remove()
    except OSError as error:
        raise DmlError(f"can't write {part.file}: {error.strerror}; the received bytes are kept") from error
    return digests["sha256"]


def _check_address(address: str, source: str = "") -> None:
    """Check that an address has a scheme and a host that this module supports.

    Raises:
        DmlError: saying what it has instead, and its `source` if a server gave it.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or a bracketed host that can't be read
        fine = False
    if not fine or any(character.isspace() or not character.isprintable() for character in address):
        raise DmlError(f"can't download {address!r}{source}: expected an address like https://host/file")


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Redirections to http and https only: urllib itself would follow one to FTP."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        """Follow a redirection.

        Raises:
            DmlError: if it leads to another kind of address.
        """
        _check_address(newurl, f", to which {req.full_url} redirects")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Part:
    """A partial download, and the note of its origin."""

    def __init__(self, file: Path) -> None:
        self.file = file.with_name(f"{file.name}.part")
        self._note = file.with_name(f"{file.name}.part.json")

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.is_file() else 0

    def read_origin(self) -> _Origin | None:
        try:
            return _Origin(**json.loads(self._note.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # no note or a corrupt one: the part can't be resumed
            return None

    def start(self, origin: _Origin) -> None:
        self.file.write_bytes(b"")
        self._note.write_text(json.dumps(asdict(origin)), encoding="utf-8")

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _fetch(address: str, part: _Part, progress: Progress | None, timeout: float) -> bool:
    """Receive data over one connection, and return whether the file is complete.

    Raises:
        _Interrupted: if the connection fails.
        DmlError: if the server refuses the request.
    """
    known, size = part.read_origin(), part.size
    resumes = size > 0 and known is not None and known.address == address and known.version is not None
    if resumes and known is not None and known.total == size:
        return True
    request = urllib.request.Request(
        address, headers={"Accept-Encoding": "identity", "User-Agent": "dml-train"}
    )
    if resumes and known is not None and known.version is not None:
        request.add_header("Range", f"bytes={size}-")
        request.add_header("If-Range", known.version)  # the server sends a changed file from its beginning
    try:
        with urllib.request.build_opener(_Redirections).open(request, timeout=timeout) as response:
            length = response.headers.get("Content-Length")
            remaining = int(length) if length is not None and length.isdecimal() else None
            if response.status == 206:
                if not _continues(response.headers.get("Content-Range", ""), size, known):
                    part.remove()
                    raise _Interrupted("the server sent a different byte range than requested")
            else:
                version = response.headers.get("ETag") or "W/"
                if version.startswith("W/"):  # equal weak tags don't imply equal bytes
                    version = response.headers.get("Last-Modified")
                known, size = _Origin(address, version, remaining), 0
                part.start(known)
            return _receive(response, part, size, remaining, known, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is longer than the server's file, which has changed
            part.remove()
            raise _Interrupted("the server's file has changed") from error
        if error.code in _PERMANENT:
            raise DmlError(
                f"can't download {address}: the server answers {error.code} {error.reason}; see docs/guide/data.md for "
                "the sources of the data set"
            ) from error
        raise _Interrupted(f"the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _Interrupted(str(error.reason)) from error
    except (TimeoutError, http.client.HTTPException, ConnectionError) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _receive(
    response: http.client.HTTPResponse,
    part: _Part,
    size: int,
    remaining: int | None,
    origin: _Origin | None,
    progress: Progress | None,
) -> bool:
    """Append the response to a part of `size` bytes, and return whether the file is complete."""
    total = None if remaining is None else size + remaining
    with part.file.open("ab") as out:
        for block in _read_blocks(response):
            out.write(block)
            size += len(block)
            if progress is not None:
                progress(size, total)
        out.flush()
        os.fsync(out.fileno())
    if total is not None and size < total:
        raise _Interrupted(f"the server closed the connection after {size:,} of {total:,} bytes")
    if origin is not None and origin.total is not None and size != origin.total:
        part.remove()
        raise _Interrupted(f"the server sent {size:,} bytes of a file with {origin.total:,}")
    return True


def _read_blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while block := response.read1(_BLOCK):  # any available bytes, since a full block may never arrive
            yield block
    except (OSError, http.client.HTTPException) as error:  # only the network's: the caller writes to the disk
        raise _Interrupted(str(error) or type(error).__name__) from error


def _continues(content_range: str, size: int, known: _Origin | None) -> bool:
    """Tell whether the server's byte range (``bytes 10-99/100``) continues a part of `size` bytes."""
    kind, _, span = content_range.partition(" ")
    begin, _, total = span.partition("-")[0], *span.partition("/")[1:]
    expected = "*" if known is None or known.total is None else str(known.total)
    return kind == "bytes" and begin == str(size) and (total in ("*", expected) or expected == "*")


def compute_digests(file: Path) -> dict[str, str]:
    """Compute a file's MD5 and SHA-256 in hexadecimal digits, by the names ``md5`` and ``sha256``."""
    digests = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            for digest in digests.values():
                digest.update(block)
    return {name: digest.hexdigest() for name, digest in digests.items()}
