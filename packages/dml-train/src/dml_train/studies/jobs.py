"""A run of a study: trained in this process, or listed as a command for any scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.files import FolderLocked, WriteRefused, write_atomically
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.studies.seconds import measure_seconds, read_seconds
from dml_train.training.run import list_differences, train


@dataclass(frozen=True, slots=True)
class Job:
    """A run to train.

    Args:
        name: shown in progress.
        recipe: the run's; its baselines are dropped, since runs of a study are compared with one another.
        folder: the run's; an existing run, complete or not, is resumed.
    """

    name: str
    recipe: Recipe
    folder: Path

    def __post_init__(self) -> None:
        evaluation = self.recipe.evaluation.model_copy(update={"baselines": False})
        object.__setattr__(self, "recipe", self.recipe.model_copy(update={"evaluation": evaluation}))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Args:
        job: the run.
        fault: why it failed; None if it finished.
    """

    job: Job
    fault: str | None = None

    def metrics(self) -> dict[str, Any]:
        """Read the run's ``evaluation.json``."""
        return RunFolder(self.job.folder).read_evaluation()

    def seconds(self) -> float | None:
        """Read the run's processor time; None if no study and no ``dml train`` trained it."""
        return read_seconds(self.job.folder)


def train_job(
    job: Job, registry: Registry | None, console: Console, *, seconds_for_lock: float = 0.0
) -> str | None:
    """Train a run; return why it failed, or None.

    Args:
        job: the run.
        registry: provides the components; None: all installed ones.
        console: shows progress.
        seconds_for_lock: how long to wait if another process works in the run's folder: perhaps it is about to end.
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
