"""Stop a run between steps, with a checkpoint, on SIGTERM, Ctrl-C, or the death of the ranks'
launcher.
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
    """A stop by a signal; finished work is kept.

    Args:
        message: should say which work was stopped, and how to resume it.
        signal_number: number of the signal; the `dml` command adds 128 to get the exit code, like a
            shell.
        arguments: see `DmlError`.
    """

    def __init__(
        self, message: str, signal_number: int, *, arguments: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.arguments = arguments


class RunInterrupted(Interrupted):
    """A stop of a run by a signal, after saving a checkpoint at optimizer step `step` in the run's
    `folder`.
    """

    def __init__(self, signal_number: int, step: int, folder: Path) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name} after step {step}; a checkpoint is saved: resume the run in "
            f"{folder}",
            signal_number,
            arguments=("resume",),
        )
        self.step, self.folder = step, folder


class StudyInterrupted(Interrupted):
    """A stop of a study by a signal; unfinished runs have saved checkpoints."""

    def __init__(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name}; finished work is kept: the same call or command resumes the rest",
            signal_number,
        )


@dataclass(slots=True)
class StopRequest:
    """The number of the last stop signal that was received; 0 if none was."""

    signal_number: int = 0


@contextmanager
def record_stop_signals(*, second_interrupts: bool = True) -> Iterator[StopRequest]:
    """Record SIGTERM and SIGINT in the main thread instead of stopping immediately.

    Args:
        second_interrupts: whether SIGINT raises KeyboardInterrupt if a signal is already recorded.
            Should not be used with ranks, which can receive Ctrl-C twice, from terminal and
            launcher.
    """
    request = StopRequest()

    def record(number: int, frame: FrameType | None) -> None:
        if request.signal_number and second_interrupts and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_number = number

    with handle_signals(STOP_SIGNALS, record):
        yield request


def wake_at_death_of_parent() -> None:
    """Let Linux send this process a SIGCONT when the parent ends, since a suspended process can't
    watch the parent.

    A running process ignores the signal. On other systems, this function has no effect. The calling
    thread must live as long as the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


@contextmanager
def end_with_launcher(launcher: int, seconds_between_looks: float = 1.0) -> Iterator[None]:
    """Send this rank a SIGTERM when the process that launched it dies; on Linux, even if this rank
    is suspended.

    torchrun's agent and ``dml train --nproc`` forward a SIGTERM, but can't if they are killed with
    SIGKILL. They start ranks as children and as leaders of sessions. Only such a process should
    watch the parent. Any other process must survive the end of the parent, for example of a shell
    on logout.

    Args:
        launcher: the id of the process that launched this rank.
        seconds_between_looks: interval at which to check the parent.
    """
    # here, since the `dml` command imports this module for its exceptions
    import torch.distributed as dist

    if not (dist.is_torchelastic_launched() and os.getsid(0) == os.getpid()):
        yield
        return
    over = threading.Event()
    wake_at_death_of_parent()

    def watch() -> None:
        # Poll, since this works everywhere. Linux could send SIGTERM, but sends it when the
        # parent's thread ends.
        while not over.wait(seconds_between_looks):
            if os.getppid() != launcher:
                os.killpg(
                    0, signal.SIGCONT
                )  # this rank waits for loaders, which may be suspended, too
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
