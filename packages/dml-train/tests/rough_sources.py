"""Sources that disturb loader processes, in a module that imports at once."""

from __future__ import annotations

import os
import signal


class Signalled:
    """Places; the loading process receives a signal meant for the whole run, as schedulers send it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getitem__(self, place: int) -> int:
        os.kill(os.getpid(), self.number)
        return place


class SignalledEarly(Signalled):
    """As `Signalled`, but the signal comes while the loading process still unpickles its work."""

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__ |= state
        os.kill(os.getpid(), self.number)


class Fatal:
    """Loads its first place at once; kills the process that loads the second, while another waits for work."""

    def __getitem__(self, place: int) -> int:
        if place == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return place
