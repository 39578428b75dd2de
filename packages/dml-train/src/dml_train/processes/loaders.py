"""Processes that load for a run. They don't heed what asks the run to stop, and they end when it does.

Schedulers, terminals and torchrun send SIGTERM and SIGINT to all processes of a run, which then takes its step to the
end and saves. For that it needs its batches: from loaders, and so from the server that forks them. Both are deaf from
their first moment on, by a mask of signals that they inherit. Processes of somebody else which the same server forks
inherit it, too; they hear again before they begin (`dml_train.processes.loader_server`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess

_STOPS = (signal.SIGTERM, signal.SIGINT)


class Loader(ForkServerProcess):
    """A process that loads."""

    def run(self) -> None:
        """Do what it is there for."""
        deafen()  # once more, if somebody else had started the server
        end_with_parent()
        super().run()


class LoaderContext(ForkServerContext):
    """The means of `multiprocessing`, with loaders for processes.

    They are not forked from this process: it has threads (the evaluator's, OpenMP's), whose locks a fork would copy.
    """

    Process = Loader

    def __init__(self) -> None:
        super().__init__()
        # What takes seconds to import is there when a loader begins.
        self.set_forkserver_preload(
            ["dml_train.data", "torchvision.transforms.v2", "dml_train.processes.loader_server"]
        )


@contextmanager
def loaders_start() -> Iterator[None]:
    """To start loaders in: what is started meanwhile is deaf, while this process gets its signals when it is over."""
    resource_tracker.ensure_running()  # now, since starting it would let signals through again (Python 3.11)
    before = deafen()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def deafen() -> set[signal.Signals | int]:
    """Put off what asks to stop; returns the mask of signals from before."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)


def hear() -> None:
    """Let through what asks to stop, also what has come already."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def end_with_parent() -> None:
    """Let this process end when the one that it works for does, even if that was killed.

    torch's own watch asks whether the process's parent has changed; but that is the fork server, which in turn
    lives as long as its children.
    """
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
