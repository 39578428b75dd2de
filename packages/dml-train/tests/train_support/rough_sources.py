"""Sources that disturb loader processes, in a module that imports fast."""

from __future__ import annotations

import os
import signal


class Signalled:
    """Source that sends a signal to the loader process, as schedulers do with all processes of a
    run.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __getitem__(self, place: int) -> int:
        os.kill(os.getpid(), self.number)
        return place


class SignalledEarly(Signalled):
    """Source that sends a signal to the loader process when the process unpickles the source."""

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__ |= state
        os.kill(os.getpid(), self.number)


class Fatal:
    """Source that kills the loader process when the second item is loaded, while a second loader
    waits.
    """

    def __getitem__(self, place: int) -> int:
        if place == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return place
