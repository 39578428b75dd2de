"""Being asked to stop: SIGTERM and Ctrl-C end a run between two steps, with a checkpoint.

So does the death of the process that launched the ranks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SECONDS_BETWEEN_LOOKS = 1.0


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
        final: whether a second SIGINT is obeyed. Ranks can get one Ctrl-C twice, from terminal and launcher.
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


@contextmanager
def ends_with_launcher() -> Iterator[None]:
    """While it lasts, the death of the launcher of this rank is a SIGTERM to it.

    torchrun's agent and ``dml train --nproc`` pass on a SIGTERM, but not their own death by SIGKILL. They start a rank
    as their child and the leader of a session: only a process for which both hold watches, and any other one goes on
    when its parent ends, as it must when that is the shell of somebody who logs out.
    """
    # Looking works everywhere. Linux could send a signal (PR_SET_PDEATHSIG), but at the end of the parent's thread.
    if not (dist.is_torchelastic_launched() and os.getsid(0) == os.getpid()):
        yield
        return
    launcher, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
