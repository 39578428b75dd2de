"""A run's folder: what is where, and how files come into it whole."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dml_core import DmlError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The recipe as resolved, every default filled in."""
        return self.path / "recipe.toml"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: the step, and what was measured at it."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def evaluation(self) -> Path:
        """The figures of the trained embedding."""
        return self.path / "evaluation.json"

    def held(self) -> AbstractContextManager[None]:
        """Keep other processes from training in this folder, see `held`."""
        return held(self.path, f"training in {self.path}")

    def embeddings(self, part: str = "") -> Path:
        """Embeddings of the test split, (N, D) float32; of another part (``"gallery"``), if named."""
        return self.path / f"{part and part + '_'}embeddings.npy"

    def labels(self, part: str = "") -> Path:
        """Their labels, (N,) int64."""
        return self.path / f"{part and part + '_'}labels.npy"

    @staticmethod
    def refuse(path: Path) -> None:
        """Say so if a new run can't go there.

        Raises:
            DmlError: if there is anything at that path but an empty folder.
        """
        # A run killed before its recipe was whole has nothing to go on with, and nothing to lose.
        if path.is_dir() and all(entry == aside_of(RunFolder(path).recipe) for entry in path.iterdir()):
            return
        if path.exists() or path.is_symlink():
            raise DmlError(
                f"the run folder {path} exists already; nothing was touched. "
                "Go on with that run by --resume, or choose another folder with --out"
            )

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make a new run's folder.

        Raises:
            DmlError: if it can't be made, or there is something there.
        """
        cls.refuse(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DmlError(f"can't make the run folder {path}: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that has begun.

        Raises:
            DmlError: if it isn't one.
        """
        folder = cls(path)
        if not folder.recipe.is_file():
            what = "holds no recipe.toml" if path.is_dir() else "doesn't exist"
            raise DmlError(f"{path} is not a run's folder: it {what}")
        return folder


@contextmanager
def held(folder: Path, doing: str) -> Iterator[None]:
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
    write_whole(path, lambda file: np.save(file, array, allow_pickle=False))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    write_whole(path, lambda file: file.write((json.dumps(value, indent=2) + "\n").encode()))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file aside, sync and rename it: under its name there is never a part of it.

    Raises:
        DmlError: if the disk is full or refuses; what was under that name is unchanged.
    """
    aside = aside_of(path)
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise DmlError(f"can't write {path}: {error.strerror}") from error


def aside_of(path: Path) -> Path:
    """Where a file is written before it comes under its name."""
    return path.with_name(f".{path.name}.partial")
