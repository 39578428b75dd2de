"""The time of a run, in its folder beside the files that `train` writes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dml_train.files import write_json
from dml_train.run_folder import RunFolder

_SECONDS = "seconds.json"


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


def read_seconds(folder: Path) -> float | None:
    """Read a run's processor time; None if it wasn't measured."""
    path = folder / _SECONDS
    return float(json.loads(path.read_text(encoding="utf-8"))["processor"]) if path.is_file() else None
