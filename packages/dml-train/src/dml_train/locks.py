"""Exclusive locks on files and folders, which end with the process: flock, or on Windows a lock on the first byte."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hold_lock(path: Path, wait: bool) -> Iterator[None]:
    """Lock a file or folder until this context or this process ends.

    Args:
        path: the file or folder to lock; a missing file is created. On Windows, a file next to the folder is locked.
        wait: whether to wait while another process holds the lock.

    Raises:
        BlockingIOError: if another process holds the lock, unless `wait`.
        OSError: if the path can't be locked.
    """
    descriptor = _open(path)
    try:
        _lock(descriptor, wait)
        yield
    finally:
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    _SECONDS_BETWEEN_TRIES = 0.1

    def _open(path: Path) -> int:
        file = path.with_name(f".{path.name}.lock") if path.is_dir() else path
        return os.open(file, os.O_RDWR | os.O_CREAT)

    def _lock(descriptor: int, wait: bool) -> None:
        while True:
            try:
                return msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except PermissionError as error:  # another process holds it
                if not wait:
                    raise BlockingIOError(*error.args) from error
            time.sleep(_SECONDS_BETWEEN_TRIES)

else:
    import fcntl

    def _open(path: Path) -> int:
        return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
