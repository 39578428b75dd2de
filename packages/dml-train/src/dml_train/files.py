"""Files that appear whole or not at all, locked folders, and arrays and JSON in files."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dml_core import DmlError


@contextmanager
def lock_folder(folder: Path, doing: str) -> Iterator[None]:
    """Keep other processes out of a folder, until this context ends or this process does, however it ends.

    Args:
        folder: which they hold by this function, too.
        doing: what they would be told that another process is at.

    Raises:
        DmlError: if another process holds it, or it can't be held.
    """
    with ExitStack() as until_the_end:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
            until_the_end.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DmlError(f"another process is {doing}; wait for it, or stop it first") from error
        except OSError as error:
            raise DmlError(
                f"can't keep other processes out of {folder}: {error.strerror}; "
                "expected a folder that may be read, on a file system with locks (flock)"
            ) from error
        yield


def read_array(path: Path) -> npt.NDArray[Any]:
    """A .npy file, mapped and not read.

    Raises:
        DmlError: if it isn't one.
    """
    try:
        array: npt.NDArray[Any] | np.lib.npyio.NpzFile = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DmlError(f"can't read {path} as a .npy file: {reason}") from error
    if isinstance(array, np.lib.npyio.NpzFile):
        array.close()
        raise DmlError(
            f"{path} is an archive of arrays; expected a .npy file: numpy.save writes one array of it"
        )
    return array


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a .npy file whole."""
    write_atomically(path, lambda file: np.save(file, array, allow_pickle=False))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    write_atomically(path, lambda file: file.write((json.dumps(value, indent=2) + "\n").encode()))


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file aside, sync and rename it: under its name there is never a part of it.

    Raises:
        DmlError: if the disk is full or refuses; what was under that name is unchanged.
    """
    aside = partial_path(path)
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise DmlError(f"can't write {path}: {error.strerror}") from error


def partial_path(path: Path) -> Path:
    """Where a file is written before it comes under its name."""
    return path.with_name(f".{path.name}.partial")
