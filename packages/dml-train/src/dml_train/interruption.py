"""Being asked to stop: SIGTERM and Ctrl-C end a run between two steps, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """The run was asked to stop, and saved a checkpoint first.

    Args:
        number: of the signal; the `dml` command exits with 128 plus it, as a shell reports a signal.
        step: optimizer steps done.
        folder: the run's.
    """

    def __init__(self, number: int, step: int, folder: Path) -> None:
        self.number = number
        name = signal.Signals(number).name
        super().__init__(
            f"stopped by {name} after step {step}; a checkpoint is saved: go on with --resume in {folder}"
        )


class Interruption:
    """While it lasts, SIGTERM and SIGINT are noted and not obeyed; a second SIGINT is obeyed at once.

    In a thread other than the main one, which signals don't reach, it does nothing.

    Args:
        final: whether a second SIGINT is obeyed. Ranks get Ctrl-C twice, from the terminal and from torchrun.
    """

    def __init__(self, *, final: bool = True) -> None:
        self.asked = 0  # the signal's number
        self._final = final

    def __enter__(self) -> Interruption:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and self._final and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number
