"""Handle and block signals for the duration of a context."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handle_signals(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle these signals with `handler`, and restore the previous handlers on exit.

    Note that only the main thread receives signals; in other threads, this function has no effect.
    """
    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def block_signals() -> set[signal.Signals | int]:
    """Block SIGTERM and SIGINT in this thread, and return the previous mask. On Windows, return an
    empty set.
    """
    return (
        set() if sys.platform == "win32" else signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    )


def restore_signals(mask: set[signal.Signals | int]) -> None:
    """Restore a mask that `block_signals` returned."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def unblock_signals() -> None:
    """Unblock SIGTERM and SIGINT in this thread; pending signals are delivered."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
