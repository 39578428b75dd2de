"""A disk of any size, or a read-only one: a tmpfs that only one process and its children see."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

IMPORTED = ["dml_train.training.run", "dml_train.report", "click.testing", "torch._dynamo"]
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # unshare(2)
_READ_ONLY, _REMOUNT, _ALL_PRIVATE = 1, 32, 16384 | 1 << 18  # mount(2)
_DETACH = 2  # umount2(2)
_LARGE = 1 << 18  # pages of 4 KiB, and files
_REFUSED = 77  # exit code of a process that may not mount anything


class Disk:
    """The disk of this process; nothing of it is left when the process ends.

    Args:
        path: an empty folder, on which it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if os.geteuid():
            user, group = os.getuid(), os.getgid()
            _call("unshare", _NEW_USER | _NEW_MOUNTS)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        else:
            _call("unshare", _NEW_MOUNTS)
        _call("mount", b"none", b"/", None, _ALL_PRIVATE, None)
        self._mount(0, _LARGE, _LARGE)

    def replace(self, pages: int = _LARGE, files: int = _LARGE) -> None:
        """Replace it by an empty one, which holds so many pages of 4 KiB and so many files and folders."""
        _call("umount2", os.fsencode(self.path), _DETACH)  # this process may have mapped a file on it
        self._mount(0, pages, files + 1)  # the root counts

    def enlarge(self) -> None:
        """Make space on it."""
        self._mount(_REMOUNT, _LARGE, _LARGE)

    def used(self) -> tuple[int, int]:
        """Return the numbers of pages and of files and folders that it holds."""
        state = os.statvfs(self.path)
        return state.f_blocks - state.f_bfree, state.f_files - state.f_ffree - 1

    def make_read_only(self) -> None:
        """Refuse every write from now on, also by the superuser."""
        self._mount(_REMOUNT | _READ_ONLY, _LARGE, _LARGE)

    def _mount(self, flags: int, pages: int, files: int) -> None:
        options = f"size={4 * pages}k,nr_inodes={files}".encode()
        _call("mount", b"none", os.fsencode(self.path), b"tmpfs", flags, options)


def on_disk(path: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Do this work in a process with a disk of its own on this folder; skip the test where nothing can be mounted."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    path.mkdir()
    errors = path.with_name(f"{path.name}.errors")
    process = context.Process(target=_work, args=(path, errors, work, arguments))
    process.start()
    process.join()
    if process.exitcode == _REFUSED:
        pytest.skip("this process may not mount a tmpfs")
    assert process.exitcode == 0, errors.read_text() if errors.exists() else process.exitcode


def _work(path: Path, errors: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        disk = Disk(path)
    except OSError:
        os._exit(_REFUSED)
    try:
        work(disk, *arguments)
    except BaseException:
        errors.write_text(traceback.format_exc())
        raise


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
