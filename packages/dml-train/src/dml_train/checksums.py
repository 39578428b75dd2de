"""Checksums of files: size and SHA-256 are recorded when a file is written, and compared when it is
read.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypedDict


class FileRecord(TypedDict):
    """A file's entry in a manifest."""

    bytes: int
    sha256: str


def record_of(path: Path) -> FileRecord:
    """Return a file's entry in the manifest."""
    return FileRecord(bytes=path.stat().st_size, sha256=sha256_of(path))


def compare(path: Path, expected: FileRecord) -> str | None:
    """Describe how a file differs from the manifest's entry, or return None; raise an OSError if it
    can't be read.
    """
    if (size := path.stat().st_size) != expected["bytes"]:
        return f"has {size} bytes; the manifest says {expected['bytes']}"
    if sha256_of(path) != expected["sha256"]:
        return "has a different SHA-256 than the manifest says"
    return None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
