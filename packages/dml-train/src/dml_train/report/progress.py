"""How far an unfinished run is, and the last metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml_core import DmlError
from dml_train.files import FolderLocked
from dml_train.run_folder import RunFolder
from dml_train.training.checkpoint import newest_step
from dml_train.training.journal import Start

Lines = Sequence[Mapping[str, float | None]]  # of ``metrics.jsonl``


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an unfinished run is."""

    step: int  # the last logged or saved step
    num_steps: int | None  # None before the first step
    seconds_left: float | None  # until the last step; None if unknown
    is_running: bool  # whether a process trains

    @classmethod
    def read(cls, folder: RunFolder, lines: Lines) -> Progress:
        """Read how far a run is, given the lines that it logged."""
        start, left = Start.read(folder), None
        step = max(int(lines[-1]["step"] or 0) if lines else 0, newest_step(folder.checkpoints))
        if start is None:
            return cls(step, None, None, is_training(folder))
        if step > start.first_step and folder.metrics.is_file():
            seconds = folder.metrics.stat().st_mtime - start.time
            left = seconds / (step - start.first_step) * (start.num_steps - step)
        return cls(step, start.num_steps, left, is_training(folder))


def is_training(folder: RunFolder) -> bool:
    """Return whether a process holds the lock of a run's folder; False if it can't be locked."""
    try:
        with folder.lock():
            return False
    except DmlError as error:
        return isinstance(error, FolderLocked)


def find_last_evaluation(lines: Lines) -> dict[str, Any]:
    """Return the metrics of the last evaluation during training, the step and the split; only step
    0 if none.
    """
    for line in reversed(lines):
        for prefix in ("evaluation/", "validation/"):
            found = {
                name.removeprefix(prefix): x for name, x in line.items() if name.startswith(prefix)
            }
            if found:
                split = "test" if prefix == "evaluation/" else "validation"
                return {**found, "step": line["step"], "split": split}
    return {"step": 0}
