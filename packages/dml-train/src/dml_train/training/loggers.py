"""Loggers of scalars: JSON lines, and TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from dml_core import Component, DmlError
from dml_train.run_folder import RunFolder

CLOCK = "time/"  # what begins with this was read off the clock and differs from run to run


class JsonLines:
    """``metrics.jsonl``: a line a step, the numbers in full precision.

    The file of a resumed run is, byte for byte, that of a run which was never stopped. So what was read off the
    clock is left out (TensorBoard has it), and lines behind the checkpoint from which a run goes on are dropped.
    JSON has neither NaN nor infinity: where a value is one, as a gradient's norm may be in a step that a loss scaler
    skips, stands ``null``.

    Args:
        directory: the run's folder.
        start_step: steps done when logging begins; later lines of an earlier attempt are dropped.

    Raises:
        DmlError: if the file is damaged, or can't be written.
    """

    def __init__(self, directory: Path, start_step: int = 0) -> None:
        path = RunFolder(directory).metrics
        self._last = ""
        with _refusals(path):
            self._file = self._opened(path, start_step)

    def _opened(self, path: Path, start_step: int) -> TextIO:
        kept = 0
        if path.exists():
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
                # The last line may be torn; it is newer than any checkpoint, as lines are flushed before those.
                if not line.endswith(b"\n"):
                    break
                try:
                    step = json.loads(line)["step"]
                except (ValueError, KeyError, TypeError) as error:
                    raise DmlError(
                        f"line {number} of {path} is damaged; move the file away to go on without what it holds"
                    ) from error
                if step > start_step:
                    break
                kept += len(line)
                self._last = line.decode()
            with path.open("r+b") as file:
                file.truncate(kept)
        return path.open("a", encoding="utf-8", buffering=1)  # by lines: a killed run loses none

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line, unless the one before is the very same: figures of a step measured once more at the end.

        Whether they were measured by this attempt or by one that was stopped then makes no difference.

        Raises:
            DmlError: if the disk is full or refuses.
        """
        lasting = {
            name: value if math.isfinite(value) else None
            for name, value in values.items()
            if not name.startswith(CLOCK)
        }
        line = json.dumps({"step": step, **lasting}) + "\n"
        if line != self._last:
            with _refusals(Path(self._file.name)):
                self._write(line)
        self._last = line

    def _write(self, line: str) -> None:
        try:
            self._file.write(line)
        except OSError:
            with suppress(OSError):  # which closing would raise anew, over the rest of the line
                self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """TensorBoard event files under ``tensorboard/``.

    Args:
        directory: the run's folder.
        start_step: steps done when logging begins; TensorBoard hides later ones of an earlier attempt.
    """

    def __init__(self, directory: Path, start_step: int = 0) -> None:
        # Imported here: it takes a second, which commands that don't train needn't wait for.
        from torch.utils.tensorboard import SummaryWriter

        self._path, self._failed = directory / "tensorboard", False
        with _refusals(self._path):
            self._writer = SummaryWriter(str(self._path), purge_step=start_step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve.

        Raises:
            DmlError: if the disk is full or refuses, what was added a moment ago.
        """
        try:
            with _refusals(self._path):
                for name, value in values.items():
                    self._writer.add_scalar(name, value, step)
        except DmlError:
            self._failed = True
            raise

    def close(self) -> None:
        """Write what is held back; nothing once `log` has failed.

        Raises:
            DmlError: as `log`.
        """
        if not self._failed:
            with _refusals(self._path):
                self._writer.close()


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DmlError(
            f"can't write {path}: {error.strerror}; checkpoints are whole. Mend that, then go on with --resume"
        ) from error


def components() -> Iterable[Component]:
    """The loggers of this package."""
    yield Component("jsonl", JsonLines, "metrics.jsonl, one JSON object a step, in full precision")
    yield Component("tensorboard", TensorBoard, "TensorBoard event files")
