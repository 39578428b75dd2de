"""A run of a study: trained in this process, or listed as a command for any scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.files import FolderLocked, WriteRefused, read_json, write_atomically, write_json
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training.run import list_differences, train

_SECONDS = "seconds.json"  # the time of a run, in its folder beside the files that `train` writes


@dataclass(frozen=True, slots=True)
class Job:
    """A run to train, without its baselines: runs of a study are compared with one another."""

    name: str  # shown in progress
    recipe: Recipe
    folder: Path  # an existing run in it, complete or not, is resumed

    def __post_init__(self) -> None:
        evaluation = self.recipe.evaluation.model_copy(update={"baselines": False})
        object.__setattr__(self, "recipe", self.recipe.model_copy(update={"evaluation": evaluation}))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    job: Job
    fault: str | None = None  # why it failed; None if it finished

    def metrics(self) -> dict[str, Any]:
        """Read the run's ``evaluation.json``."""
        return RunFolder(self.job.folder).read_evaluation()

    def seconds(self) -> float | None:
        """Read the run's processor time; None if no study and no ``dml train`` trained it."""
        path = self.job.folder / _SECONDS
        return float(read_json(path)["processor"]) if path.is_file() else None


@contextmanager
def measure_seconds(folder: Path) -> Iterator[None]:
    """Write the time of the training in this context into the run's folder, unless the run was complete before.

    Of an interrupted run, it is the time since it was resumed.
    """
    done_before = RunFolder(folder).is_finished
    wall, processor = time.perf_counter(), time.process_time()
    yield
    if not done_before:
        write_json(
            folder / _SECONDS,
            {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor},
        )


def train_job(
    job: Job, registry: Registry | None, console: Console, *, seconds_for_lock: float = 0.0
) -> str | None:
    """Train a run; return why it failed, or None.

    If another process works in the run's folder, wait `seconds_for_lock`: perhaps it is about to end.
    """
    give_up = time.monotonic() + seconds_for_lock
    while True:
        try:
            with measure_seconds(job.folder):
                train(job.recipe, job.folder, resume=True, registry=registry, console=console)
        except WriteRefused:  # no fault of this run's settings, and the next one would have it, too
            raise
        except FolderLocked as error:
            if time.monotonic() >= give_up:
                return str(error)
            time.sleep(1.0)
        except DmlError as error:
            return str(error)
        else:
            return None


def list_commands(jobs: Iterable[Job]) -> list[str]:
    """Return the command that trains each unfinished run, once for each folder.

    It writes the recipe of a run that hasn't begun into the run's folder: the command reads it there. A command
    resumes, so it may be repeated. Relative paths in recipes start at the folder in which a command is executed.

    Raises:
        DmlError: if a run's folder holds another run, or the disk refuses.
    """
    commands = []
    for job in {job.folder: job for job in jobs}.values():
        folder = RunFolder(job.folder)
        list_differences(job.folder, job.recipe, resume=True, force=False)
        if folder.is_finished:
            continue
        if not folder.recipe.is_file():
            _write_recipe(job)
        commands.append(f"{folder.resume_command} --no-report")
    return commands


def _write_recipe(job: Job) -> None:
    folder, text = RunFolder.create(job.folder), job.recipe.to_toml()
    write_atomically(folder.recipe, lambda file: file.write(text.encode()))
