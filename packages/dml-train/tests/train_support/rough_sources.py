"""Sources that disturb loader processes, in a module that imports fast."""

from __future__ import annotations

import os
import signal


class Signalled:
    """Source that sends its loader process a signal, as schedulers send one to every process of a run."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getitem__(self, place: int) -> int:
        os.kill(os.getpid(), self.number)
        return place


class SignalledEarly(Signalled):
    """Source whose signal arrives while the loader process unpickles its work."""

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__ |= state
        os.kill(os.getpid(), self.number)


class Fatal:
    """Source whose first item loads at once and whose second kills the loader process, while another waits."""

    def __getitem__(self, place: int) -> int:
        if place == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return place
