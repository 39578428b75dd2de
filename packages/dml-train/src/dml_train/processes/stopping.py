"""Stops on request: SIGTERM and Ctrl-C end a run between two steps, with a checkpoint.

So does the death of the process that launched the ranks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dml_train.processes.signals import STOP_SIGNALS, handle_signals

_PR_SET_PDEATHSIG = 1  # prctl(2)


class Interrupted(Exception):
    """A stop by a signal; nothing finished is lost.

    Args:
        message: what was stopped, and how to resume it.
        signal_number: the signal's; the `dml` command exits with 128 plus it, as a shell reports a signal.
        arguments: as those of a `DmlError`.
    """

    def __init__(self, message: str, signal_number: int, *, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.arguments = arguments


class RunInterrupted(Interrupted):
    """A run stopped by a signal, after it saved a checkpoint; `step` counts optimizer steps, `folder` is the run's."""

    def __init__(self, signal_number: int, step: int, folder: Path) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name} after step {step}; a checkpoint is saved: resume the run in {folder}",
            signal_number,
            arguments=("resume",),
        )
        self.step, self.folder = step, folder


class StudyInterrupted(Interrupted):
    """Many runs stopped by a signal; each unfinished one saved a checkpoint."""

    def __init__(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name}; finished work is kept: the same call or command resumes the rest",
            signal_number,
        )


@dataclass(slots=True)
class StopRequest:
    """The last signal received that asks to stop; 0 if there was none."""

    signal_number: int = 0


@contextmanager
def record_stop_signals(*, second_interrupts: bool = True) -> Iterator[StopRequest]:
    """Record SIGTERM and SIGINT instead of obeying them, in the main thread.

    Args:
        second_interrupts: whether a SIGINT after another signal raises KeyboardInterrupt. Ranks can receive one Ctrl-C
            twice, from terminal and launcher.
    """
    request = StopRequest()

    def record(number: int, frame: FrameType | None) -> None:
        if request.signal_number and second_interrupts and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_number = number

    with handle_signals(STOP_SIGNALS, record):
        yield request


def wake_at_death_of_parent() -> None:
    """Let Linux send this process a SIGCONT when its parent ends, since a suspended process can't watch its parent.

    A process that runs ignores it. Elsewhere this does nothing. The caller's thread must live as long as the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


@contextmanager
def end_with_launcher(launcher: int, seconds_between_looks: float = 1.0) -> Iterator[None]:
    """Send this rank a SIGTERM when the process that launched it dies; on Linux, even if this rank is suspended.

    torchrun's agent and ``dml train --nproc`` pass on a SIGTERM, but not their own death by SIGKILL. They start a rank
    as their child and the leader of a session. Only a process that is both watches its parent; any other one survives
    its parent, as it must when that is the shell of a user who logs out.

    Args:
        launcher: the id of the process that launched this rank.
        seconds_between_looks: how often the watch looks at the parent.
    """
    import torch.distributed as dist  # here, since the `dml` command imports this module for its exceptions

    if not (dist.is_torchelastic_launched() and os.getsid(0) == os.getpid()):
        yield
        return
    over = threading.Event()
    wake_at_death_of_parent()

    def watch() -> None:
        # Polling works everywhere. Linux could send SIGTERM itself, but does so at the end of the parent's thread.
        while not over.wait(seconds_between_looks):
            if os.getppid() != launcher:
                os.killpg(0, signal.SIGCONT)  # loaders, which this rank waits for, may be suspended, too
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
