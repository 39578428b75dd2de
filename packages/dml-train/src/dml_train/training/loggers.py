"""Loggers of scalars: JSON lines, and TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TextIO

from dml_core import DmlError
from dml_train.extras import extra
from dml_train.files import report_write_errors
from dml_train.run_folder import RunFolder

CLOCK = "time/"  # prefix of values read from the clock, which differ from run to run


class JsonLines:
    """``metrics.jsonl``: a line per step, numbers in full precision.

    A resumed run writes bytes identical to an uninterrupted run. For this, values read from the
    clock are omitted (but sent to TensorBoard), and lines newer than the checkpoint are dropped
    when a run resumes. JSON has neither NaN nor infinity, so such a value is ``null``, for example
    the gradient norm of a step that the loss scaler skips. Raises a `DmlError` if the file is
    corrupt, or can't be written.

    Args:
        directory: the run's folder.
        start_step: steps done when logging starts; later lines of an earlier attempt are dropped.
    """

    def __init__(self, directory: Path, start_step: int = 0) -> None:
        path = RunFolder(directory).metrics
        self._last = ""
        with _report_write_errors(path):
            self._file = self._opened(path, start_step)

    def _opened(self, path: Path, start_step: int) -> TextIO:
        kept = 0
        if path.exists():
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
                # The last line may be incomplete. It is newer than any checkpoint, since lines are
                # flushed first.
                if not line.endswith(b"\n"):
                    break
                try:
                    step = json.loads(line)["step"]
                except (ValueError, KeyError, TypeError) as error:
                    raise DmlError(
                        f"line {number} of {path} is corrupt; move the file away to resume without "
                        "these lines"
                    ) from error
                if step > start_step:
                    break
                kept += len(line)
                self._last = line.decode()
            with path.open("r+b") as file:
                file.truncate(kept)
        return path.open(
            "a", encoding="utf-8", buffering=1
        )  # line-buffered: a killed run doesn't lose lines

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a line, unless it equals the previous line; raise a `DmlError` if the disk is full
        or fails.

        A run that is resumed after the last step evaluates this step again. Since the repeated line
        isn't written, the file is identical to that of an uninterrupted run.
        """
        lasting = {
            name: value if math.isfinite(value) else None
            for name, value in values.items()
            if not name.startswith(CLOCK)
        }
        line = json.dumps({"step": step, **lasting}) + "\n"
        if line != self._last:
            with _report_write_errors(Path(self._file.name)):
                try:
                    self._file.write(line)
                except OSError:
                    with suppress(OSError):  # closing will raise again for the rest of the line
                        self._file.close()
                    raise
        self._last = line

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """TensorBoard event files under ``tensorboard/``.

    Args:
        directory: the run's folder.
        start_step: steps done when logging starts; TensorBoard hides later steps of an earlier
            attempt.
    """

    def __init__(self, directory: Path, start_step: int = 0) -> None:
        # Import TensorBoard only when needed: this takes a second, and most commands don't train.
        with extra("tensorboard", "the logger 'tensorboard'"):
            from torch.utils.tensorboard import SummaryWriter

        self._path, self._failed = directory / "tensorboard", False
        with _report_write_errors(self._path):
            self._writer = SummaryWriter(str(self._path), purge_step=start_step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point per curve; raise a `DmlError` if the disk is full or fails, perhaps for
        earlier points.
        """
        try:
            with _report_write_errors(self._path):
                for name, value in values.items():
                    self._writer.add_scalar(name, value, step)
        except DmlError:
            self._failed = True
            raise

    def close(self) -> None:
        """Flush the buffered points, unless `log` failed; raise a `DmlError` if the disk is full or
        fails.
        """
        if not self._failed:
            with _report_write_errors(self._path):
                self._writer.close()


def _report_write_errors(path: Path) -> AbstractContextManager[None]:
    advice = "; checkpoints are intact. Correct this, then resume the run"
    return report_write_errors(f"write {path}", advice, arguments=("resume",))
