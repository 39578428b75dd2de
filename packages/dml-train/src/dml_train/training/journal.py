"""Files about a run that trains, for reports: how far it is, and the failures that training
noticed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from dml_train.files import read_json, write_json
from dml_train.run_folder import RunFolder


class Start(NamedTuple):
    """When a process started to train, or resumed."""

    num_steps: int  # in the whole run
    first_step: int  # number of steps that were done before
    time: float  # seconds since 1970

    @classmethod
    def read(cls, folder: RunFolder) -> Start | None:
        """Read the file; None if it doesn't exist, because the run is finished or hasn't
        started.
        """
        return cls(**read_json(folder.progress)) if folder.progress.is_file() else None


class Failure(NamedTuple):
    """A failure in training, which may have ended the run."""

    step: int
    what: str
    items: Sequence[int]  # the batch, as indices in the split that trains


def start_journal(folder: RunFolder, num_steps: int, first_step: int) -> None:
    """Write when training starts, and drop failures of steps that will be repeated."""
    write_json(folder.progress, Start(num_steps, first_step, time.time())._asdict())
    kept = [failure for failure in read_failures(folder) if failure.step <= first_step]
    if kept:
        _write(folder, kept)
    else:
        folder.failures.unlink(missing_ok=True)


def read_failures(folder: RunFolder) -> list[Failure]:
    """Read the failures, in the order of steps."""
    if not folder.failures.is_file():
        return []
    return [Failure(**failure) for failure in read_json(folder.failures)["failures"]]


def add_failure(folder: RunFolder, failure: Failure) -> None:
    """Add a failure to the file."""
    _write(folder, [*read_failures(folder), failure])


def _write(folder: RunFolder, failures: Sequence[Failure]) -> None:
    write_json(folder.failures, {"failures": [failure._asdict() for failure in failures]})
