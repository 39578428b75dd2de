"""Read the environment of a rank that a launcher started; torch isn't imported."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click

# the id of the `dml` process that launched this rank and reports the rank's errors
LAUNCHED = "DML_LAUNCHED"
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torch reads a rank's error message from this file


def is_first_process() -> bool:
    """Return whether this process is rank 0 or the only process."""
    return os.environ.get("RANK", "0") == "0"


def was_restarted() -> bool:
    """Return whether torchrun restarted this run after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def find_launcher() -> int:
    """Return the id of the process that launched this rank.

    This is the id that `dml_train.ranks.launch` passes to ranks, since the current parent is a
    different process if the launcher died while the rank imported torch. With other launchers, it
    is the current parent.
    """
    return int(os.environ.get(LAUNCHED, os.getppid()))


def report_error(message: str) -> None:
    """Report an error to the process that launched this rank, or on the error stream."""
    if LAUNCHED in os.environ and _ERROR_FILE in os.environ:
        content = json.dumps({"message": message, "timestamp": int(time.time())})
        Path(os.environ[_ERROR_FILE]).write_text(content, encoding="utf-8")
    else:
        click.echo(f"error: {message}", err=True)
