"""Downloading a file over HTTP: resumed where it broke off, checked, and under its name only when it is whole."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dml_core import DmlError

Progress = Callable[[int, int | None], None]  # (bytes that are there, bytes in all if known)

_BLOCK = 1 << 20
_PERMANENT = frozenset({400, 401, 403, 404, 405, 410, 451})


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a part was a part of: only what is still that may be added to it."""

    address: str
    version: str | None  # the server's ETag, or else its date of change
    total: int | None  # bytes


class _Broken(Exception):
    """The transfer broke off, for a reason that may be gone the next time."""


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

    What has come lies in ``NAME.part`` until it is whole; called again after any end, it goes on from there, if the
    server can do that and its file is still the same. Then the checksum is compared and the file gets its name.

    Args:
        address: http or https.
        file: where to; its folder must be there.
        md5: what its MD5 must be; None if that isn't known.
        progress: called as blocks come.
        timeout: seconds without a byte after which a connection is given up.
        tries: how often, without a single byte between, it is tried.
        pause: seconds before the second try; doubled before each further one.

    Raises:
        DmlError: the server refuses, or breaks off again and again (what has come is kept); the file has another
            checksum than `md5` (what has come is removed); the disk is full.
    """
    part, failures = _Part(file), 0
    try:
        while True:
            before = part.size
            try:
                if _fetch(address, part, progress, timeout):
                    break
            except _Broken as error:
                failures = 0 if part.size > before else failures + 1
                if failures >= tries:
                    raise DmlError(
                        f"can't download {address}: {error}, {tries} times without progress; {part.size:,} bytes "
                        f"are kept in {part.file}: start it again to go on from there"
                    ) from error
                time.sleep(pause * 2 ** max(0, failures - 1) if failures else 0.0)
        sums = digests(part.file)
        if md5 is not None and sums["md5"] != md5:
            part.remove()
            raise DmlError(
                f"{address} sent a file whose MD5 is {sums['md5']}, where {md5} is known; it was removed. Try "
                "again; if that is all it sends, the file there was changed or damaged"
            )
        part.file.replace(file)
        part.remove()
    except OSError as error:
        raise DmlError(f"can't write {part.file}: {error.strerror}; what has come is kept") from error
    return sums["sha256"]


class _Part:
    """What has come of a file, and what it is a part of."""

    def __init__(self, file: Path) -> None:
        self.file = file.with_name(f"{file.name}.part")
        self._note = file.with_name(f"{file.name}.part.json")

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.is_file() else 0

    def origin(self) -> _Origin | None:
        try:
            return _Origin(**json.loads(self._note.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # no note, or half of one: not to be gone on with
            return None

    def begin(self, origin: _Origin) -> None:
        self.file.write_bytes(b"")
        self._note.write_text(json.dumps(asdict(origin)), encoding="utf-8")

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _fetch(address: str, part: _Part, progress: Progress | None, timeout: float) -> bool:
    """One connection's worth; whether the file is whole now.

    Raises:
        _Broken: if the connection broke off.
        DmlError: if the server refuses.
    """
    known, have = part.origin(), part.size
    goes_on = have > 0 and known is not None and known.address == address and known.version is not None
    if goes_on and known is not None and known.total == have:
        return True
    request = urllib.request.Request(
        address, headers={"Accept-Encoding": "identity", "User-Agent": "dml-train"}
    )
    if goes_on and known is not None and known.version is not None:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", known.version)  # another file is then sent from its beginning
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            length = response.headers.get("Content-Length")
            left = int(length) if length is not None and length.isdecimal() else None
            if response.status == 206:
                if not _fits(response.headers.get("Content-Range", ""), have, known):
                    part.remove()
                    raise _Broken("the server sent another part than the one that was asked for")
            else:
                version = response.headers.get("ETag") or "W/"
                if version.startswith("W/"):  # a weak tag doesn't say that the bytes are the same
                    version = response.headers.get("Last-Modified")
                known, have = _Origin(address, version, left), 0
                part.begin(known)
            return _receive(response, part, have, left, known, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is longer than the file, which has changed
            part.remove()
            raise _Broken("the server's file has changed") from error
        if error.code in _PERMANENT:
            raise DmlError(
                f"can't download {address}: the server answers {error.code} {error.reason}; see docs/guide/data.md for "
                "where the data set is"
            ) from error
        raise _Broken(f"the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _Broken(str(error.reason)) from error
    except (TimeoutError, http.client.HTTPException, ConnectionError) as error:
        raise _Broken(str(error) or type(error).__name__) from error


def _receive(
    response: http.client.HTTPResponse,
    part: _Part,
    have: int,
    left: int | None,
    origin: _Origin | None,
    progress: Progress | None,
) -> bool:
    """Add what comes to the part; whether it is whole then."""
    total = None if left is None else have + left
    with part.file.open("ab") as out:
        for block in _blocks(response):
            out.write(block)
            have += len(block)
            if progress is not None:
                progress(have, total)
        out.flush()
        os.fsync(out.fileno())
    if total is not None and have < total:
        raise _Broken(f"the server closed the connection after {have:,} of {total:,} bytes")
    if origin is not None and origin.total is not None and have != origin.total:
        part.remove()
        raise _Broken(f"the server sent {have:,} bytes of a file that it said has {origin.total:,}")
    return True


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while block := response.read1(_BLOCK):  # what is there, and not a whole block that may never come
            yield block
    except (
        OSError,
        http.client.HTTPException,
    ) as error:  # of the network: what is written is written elsewhere
        raise _Broken(str(error) or type(error).__name__) from error


def _fits(content_range: str, have: int, known: _Origin | None) -> bool:
    """Whether a part as the server describes it (``bytes 10-99/100``) goes on where the one that is there ends."""
    kind, _, span = content_range.partition(" ")
    begin, _, total = span.partition("-")[0], *span.partition("/")[1:]
    expected = "*" if known is None or known.total is None else str(known.total)
    return kind == "bytes" and begin == str(have) and (total in ("*", expected) or expected == "*")


def digests(file: Path) -> dict[str, str]:
    """A file's MD5 and SHA-256 in hexadecimal digits, by the names ``md5`` and ``sha256``."""
    sums = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            for digest in sums.values():
                digest.update(block)
    return {name: digest.hexdigest() for name, digest in sums.items()}
