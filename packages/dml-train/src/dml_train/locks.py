"""Exclusive locks on files and folders, which end with the process: flock, or on Windows a lock on
the first byte.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def hold_lock(path: Path, wait: bool) -> Iterator[None]:
    """Lock a file or folder until this context or this process ends.

    Args:
        path: the file or folder to lock; a missing file is created. Windows and NFS only lock files
            that are open for writing, which a folder can't be; instead, a file next to the folder
            is locked.
        wait: whether to wait if a different process holds the lock.

    Raises:
        BlockingIOError: if a different process holds the lock, unless `wait`.
        OSError: if the path can't be locked.
    """
    with ExitStack() as opened:
        is_folder = path.is_dir()
        if is_folder and sys.platform != "win32":
            try:
                _lock(path, os.O_RDONLY, wait, opened)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
            else:
                yield
                return
        file = path.with_name(f".{path.name}.lock") if is_folder else path
        _lock(file, os.O_RDWR | os.O_CREAT, wait, opened)
        yield


def _lock(path: Path, flags: int, wait: bool, opened: ExitStack) -> None:
    """Open and lock a file, until `opened` closes it."""
    descriptor = os.open(path, flags, 0o666)
    opened.callback(os.close, descriptor)
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except PermissionError as error:  # a different process holds the lock
                if not wait:
                    raise BlockingIOError(*error.args) from error
            time.sleep(0.1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
