"""Files that appear complete or not at all, locked folders, and arrays and JSON in files."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dml_core import DmlError
from dml_train.locks import hold_lock


class FolderLocked(DmlError):
    """Another process works in the folder."""


class WriteRefused(DmlError):
    """A write that the disk refused, since it is full, read-only or failing; what was complete before stays."""


@contextmanager
def lock_folder(folder: Path, doing: str) -> Iterator[None]:
    """Lock a folder until this context or this process ends.

    Args:
        folder: the folder to lock; other processes lock it with this function, too.
        doing: what this process does there, for the error of another one: "training in runs/a".

    Raises:
        FolderLocked: if another process has locked it.
        DmlError: if it can't be locked.
    """
    with ExitStack() as until_the_end:
        try:
            until_the_end.enter_context(hold_lock(folder, wait=False))
        except BlockingIOError as error:
            raise FolderLocked(f"another process is {doing}; wait for it, or stop it first") from error
        except OSError as error:
            raise DmlError(
                f"can't lock {folder}: {error.strerror}; "
                "expected a readable folder on a file system with locks (flock)"
            ) from error
        yield


def check_path(path: Path) -> None:
    """Check that a file could have this path, whether it exists or not.

    Raises:
        DmlError: for a name that is too long or contains what no name can.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DmlError(f"no file can have the path {str(path)[:100]!r}: {reason}") from error


def read_array(path: Path) -> npt.NDArray[Any]:
    """Map a .npy file into memory.

    Raises:
        DmlError: if it can't be read as one.
    """
    try:
        array: npt.NDArray[Any] | np.lib.npyio.NpzFile = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            reason = (
                "it's a text file or another format, or it holds Python objects; expected numbers or strings"
            )
        raise DmlError(f"can't read {path} as a .npy file: {reason}") from error
    if isinstance(array, np.lib.npyio.NpzFile):
        array.close()
        raise DmlError(
            f"{path} is an archive of arrays; expected a .npy file, as numpy.save writes one array"
        )
    return array


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a .npy file atomically.

    Raises:
        WriteRefused: as `write_atomically`.
    """
    # numpy writes into a file of its own accord by C's fwrite, and then its errors don't say why one failed.
    write_atomically(path, lambda file: np.save(_WriteOnly(file), array, allow_pickle=False))


class _WriteOnly:
    """A file that numpy knows only how to write to."""

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DmlError: if it is corrupt, or can't be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise DmlError(f"{path} is corrupt: {error}") from error
    if not isinstance(value, dict):
        raise DmlError(f"{path} is corrupt: it holds {type(value).__name__}; expected a JSON object")
    return value


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 atomically; a path in the text that isn't UTF-8 keeps its bytes.

    Raises:
        WriteRefused: as `write_atomically`.
    """
    write_atomically(path, lambda file: file.write(text.encode(errors="surrogateescape")))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file in UTF-8, with a line of column names, as `write_text`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically.

    Raises:
        WriteRefused: as `write_atomically`.
    """
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under another name, sync and rename it, so that under its own name it is always complete.

    Raises:
        WriteRefused: if the write fails, as on a full disk; an existing file of that name is unchanged.
    """
    partial = partial_path(path)
    with refusals(f"write {path}"):
        try:
            with partial.open("wb") as file:
                write(file)
            sync(partial)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def refusals(doing: str, advice: str = "", arguments: tuple[str, ...] = ()) -> Iterator[None]:
    """Raise WriteRefused in place of an OSError.

    Args:
        doing: what can't be done: "write runs/a/recipe.toml".
        advice: follows the disk's message.
        arguments: as those of a `DmlError`.
    """
    try:
        yield
    except OSError as error:
        raise WriteRefused(
            f"can't {doing}: {error.strerror or error}{advice}", arguments=arguments
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents, unless they exist; raise WriteRefused if that fails."""
    with refusals(f"make the folder {path}"):
        path.mkdir(parents=True, exist_ok=True)


def sync(path: Path) -> None:
    """Write a file's or folder's buffered contents to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def partial_path(path: Path) -> Path:
    """Return the path to which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.partial")
