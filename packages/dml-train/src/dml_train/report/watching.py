"""Write the report of a running run again whenever the run was evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dml_core import Registry
from dml_train.report.page import write_report
from dml_train.report.progress import find_last_evaluation, is_training
from dml_train.run_folder import RunFolder

_SECONDS = 2.0  # between two looks at the folder


def watch_report(run: Path, registry: Registry, report: Callable[[Path], object]) -> None:
    """Write the report now, after each evaluation of a running run, and when training ends.

    `report` is called with the page after each time.
    """
    folder, seen = RunFolder.open(run), None
    while True:
        ended = folder.is_finished or not is_training(folder)
        now = (ended, find_last_evaluation(folder.read_metrics())["step"])
        if now != seen:
            report(write_report(run, registry))
            seen = now
        if ended:
            return
        time.sleep(_SECONDS)
