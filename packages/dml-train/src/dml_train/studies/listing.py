"""The commands of a study: one a run, to be executed anywhere, in any order, by any scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import BinaryIO

from dml_train.files import write_atomically
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import Job
from dml_train.training.run import list_differences


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
            RunFolder.create(job.folder)
            write_atomically(folder.recipe, partial(_write, job.recipe.to_toml().encode()))
        commands.append(f"{folder.resume_command} --no-report")
    return commands


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)
