"""Write files atomically, lock folders, and read and write arrays and JSON."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dml_core import DmlError
from dml_train.locks import hold_lock


class FolderLocked(DmlError):
    """An error for a folder that another process has locked."""


class WriteRefused(DmlError):
    """A failed write, for example because the disk is full or read-only; existing complete files
    are unchanged.
    """


@contextmanager
def lock_folder(folder: Path, doing: str) -> Iterator[None]:
    """Lock a folder until this context or this process ends.

    Args:
        folder: the folder to lock; other processes should also lock it using this function.
        doing: the activity of the processes that lock this folder, for the error: "training in
            runs/a".

    Raises:
        FolderLocked: if another process holds the lock.
        DmlError: if the folder can't be locked.
    """
    with ExitStack() as until_the_end:
        try:
            until_the_end.enter_context(hold_lock(folder, wait=False))
        except BlockingIOError as error:
            raise FolderLocked(
                f"another process is {doing}; wait for it, or stop it first"
            ) from error
        except OSError as error:
            raise DmlError(
                f"can't lock {folder}: {error.strerror}; "
                "expected a readable folder on a file system with locks (flock)"
            ) from error
        yield


def check_path(path: Path) -> None:
    """Raise a `DmlError` if the path can't be a file, because a name is too long or contains an
    invalid character.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DmlError(
            f"a file can't be written at the path {str(path)[:100]!r}: {reason}"
        ) from error


def read_array(path: Path) -> npt.NDArray[Any]:
    """Map a .npy file into memory; raise a `DmlError` if it isn't a readable .npy file."""
    try:
        array: npt.NDArray[Any] | np.lib.npyio.NpzFile = np.load(
            path, mmap_mode="r", allow_pickle=False
        )
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            reason = (
                "it is in a different format, or contains Python objects; expected numbers or "
                "strings"
            )
        raise DmlError(f"can't read {path} as a .npy file: {reason}") from error
    if isinstance(array, np.lib.npyio.NpzFile):
        array.close()
        raise DmlError(
            f"{path} is an archive of arrays; expected a .npy file with a single array, as "
            "numpy.save writes it"
        )
    return array


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a .npy file with `write_atomically`."""

    def write(file: BinaryIO) -> None:
        # Hide the file's descriptor: numpy would otherwise use C's fwrite, and errors wouldn't say
        # why a write failed.
        writable: Any = SimpleNamespace(write=file.write)
        np.save(writable, array, allow_pickle=False)

    write_atomically(path, write)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise a `DmlError` if the file is corrupt or can't be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise DmlError(f"{path} is corrupt: {error}") from error
    if not isinstance(value, dict):
        raise DmlError(
            f"{path} is corrupt: it contains {type(value).__name__}; expected a JSON object"
        )
    return value


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 with `write_atomically`; paths in it that aren't UTF-8 keep their
    bytes.
    """
    write_atomically(path, lambda file: file.write(text.encode(errors="surrogateescape")))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with `write_text`; the first line contains the column names."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file with `write_atomically`."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, sync and rename it, so that `path` is always complete.

    If the write fails, for example on a full disk, raise `WriteRefused`; an existing file at `path`
    is not changed.
    """
    partial = partial_path(path)
    with report_write_errors(f"write {path}"):
        try:
            with partial.open("wb") as file:
                write(file)
            sync(partial)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def report_write_errors(
    doing: str, advice: str = "", arguments: tuple[str, ...] = ()
) -> Iterator[None]:
    """Raise WriteRefused in place of an OSError.

    Args:
        doing: the failed action, for the message: "write runs/a/recipe.toml".
        advice: text to append to the message.
        arguments: see `DmlError`.
    """
    try:
        yield
    except OSError as error:
        raise WriteRefused(
            f"can't {doing}: {error.strerror or error}{advice}", arguments=arguments
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and the parents, unless they exist; raise `WriteRefused` if this fails."""
    with report_write_errors(f"make the folder {path}"):
        path.mkdir(parents=True, exist_ok=True)


def sync(path: Path) -> None:
    """Write a file's or folder's buffered contents to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def partial_path(path: Path) -> Path:
    """Return the temporary path of a file that is being written."""
    return path.with_name(f".{path.name}.partial")
