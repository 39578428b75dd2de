"""Sources that loader processes have a hard time with: in a module of their own, which imports in no time."""

from __future__ import annotations

import os
import signal


class Signalled:
    """Places, whose loading process gets the signal that is meant for the whole run, as schedulers send it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getitem__(self, place: int) -> int:
        os.kill(os.getpid(), self.number)
        return place


class SignalledEarly(Signalled):
    """The signal comes while the loading process is still finding out what it is to do."""

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__ |= state
        os.kill(os.getpid(), self.number)


class Fatal:
    """Its first place is there at once; the process that loads the second is killed, and another waits for work."""

    def __getitem__(self, place: int) -> int:
        if place == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return place
