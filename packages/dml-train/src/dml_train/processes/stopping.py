"""Stops on request: SIGTERM and Ctrl-C end a run between two steps, with a checkpoint.

So does the death of the process that launched the ranks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dml_train.processes.signals import STOP_SIGNALS, handle_signals


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
    """A run stopped by a signal, after it saved a checkpoint.

    Args:
        signal_number: the signal's.
        step: optimizer steps done.
        folder: the run's.
    """

    def __init__(self, signal_number: int, step: int, folder: Path) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name} after step {step}; a checkpoint is saved: resume the run in {folder}",
            signal_number,
            arguments=("resume",),
        )
        self.step = step
        self.folder = folder


class StudyInterrupted(Interrupted):
    """Many runs stopped by a signal; each unfinished one saved a checkpoint.

    Args:
        signal_number: the signal's.
    """

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


@contextmanager
def end_with_launcher(seconds_between_looks: float = 1.0) -> Iterator[None]:
    """Send this rank a SIGTERM when the process that launched it dies.

    torchrun's agent and ``dml train --nproc`` pass on a SIGTERM, but not their own death by SIGKILL. They start a rank
    as their child and the leader of a session. Only a process that is both watches its parent; any other one survives
    its parent, as it must when that is the shell of a user who logs out.

    Args:
        seconds_between_looks: how often the watch looks at the parent.
    """
    import torch.distributed as dist  # here, since the `dml` command imports this module for its exceptions

    # Polling works everywhere. Linux could send a signal (PR_SET_PDEATHSIG), but at the end of the parent's thread.
    if not (dist.is_torchelastic_launched() and os.getsid(0) == os.getpid()):
        yield
        return
    launcher, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(seconds_between_looks):
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
