"""Third-party code that may raise anything, also what ends a program: only the user's own Ctrl-C passes."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_log = logging.getLogger(__name__)


class Contained:
    """How contained code ended.

    Attributes:
        error: what it raised; None if it ended normally.
    """

    error: BaseException | None = None


@contextmanager
def contain(name: str, *, slow_after: float = 15.0) -> Iterator[Contained]:
    """Run a plugin's code and keep what it raises, `SystemExit` and its own `KeyboardInterrupt` too.

    A warning names code that takes longer than `slow_after` seconds while it runs, and code that leaves threads behind
    which would keep the program from ending.

    Args:
        name: of the plugin, for the warnings.
        slow_after: seconds.

    Raises:
        KeyboardInterrupt: if the user pressed Ctrl-C meanwhile.
    """
    contained = Contained()
    threads = set(threading.enumerate())
    timer = threading.Timer(slow_after, _log.warning, ["%s has taken %g s so far", name, slow_after])
    timer.daemon = True
    timer.start()
    with _noting_ctrl_c() as pressed:
        try:
            yield contained
        except BaseException as error:  # third-party code may raise anything
            contained.error = error
        finally:
            timer.cancel()
            timer.join()
    if pressed():
        raise KeyboardInterrupt from contained.error
    left = [thread.name for thread in set(threading.enumerate()) - threads if not thread.daemon]
    if left:
        _log.warning(
            "%s left threads behind that keep the program running: %s", name, ", ".join(sorted(left))
        )


@contextmanager
def _noting_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Note whether SIGINT arrives; its handler acts as before. Only the main thread receives signals."""
    before = signal.getsignal(signal.SIGINT)
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        if callable(before):
            before(number, frame)

    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # the code may have set its own
            signal.signal(signal.SIGINT, before)
