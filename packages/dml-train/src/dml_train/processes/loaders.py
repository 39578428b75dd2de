"""Loader processes of a run: they ignore signals to stop, and end when the parent process ends.

Schedulers, terminals and torchrun send SIGTERM and SIGINT to all processes of a run. The run then
finishes the step and saves, so it still needs batches from the loaders and the fork server. Both
therefore inherit a mask that blocks these signals from the start. The server may also fork
processes for other libraries; these unblock the signals before they start
(`dml_train.processes.loader_server`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker

from dml_train.processes.signals import block_signals, restore_signals

if sys.platform == "win32":  # Windows doesn't fork, or signal a run's processes
    from multiprocessing.context import SpawnContext as Context
    from multiprocessing.context import SpawnProcess as ContextProcess
else:
    from multiprocessing.context import ForkServerContext as Context
    from multiprocessing.context import ForkServerProcess as ContextProcess


class Loader(ContextProcess):
    """A process that loads batches."""

    def run(self) -> None:
        """Block signals to stop, and load until the parent ends."""
        block_signals()  # in case a different library started the server before the mask was set
        end_with_parent()
        super().run()


class LoaderContext(Context):
    """A `multiprocessing` context for loader processes.

    They aren't forked from this process, since a fork would copy locks that other threads hold (the
    evaluator's, OpenMP's).
    """

    Process = Loader

    def __init__(self) -> None:
        super().__init__()
        # The server imports these modules once, so that loaders needn't spend seconds on it.
        if sys.platform != "win32":
            self.set_forkserver_preload(
                ["dml_train.data.factories", "dml_train.processes.loader_server"]
            )


@contextmanager
def block_signals_for_loaders() -> Iterator[None]:
    """Block SIGTERM and SIGINT while loaders start, so that loaders inherit the mask; deliver
    signals afterwards.
    """
    if sys.platform != "win32":
        # now, since starting it later would unblock the signals (Python 3.11)
        resource_tracker.ensure_running()
    previous = block_signals()
    try:
        yield
    finally:
        restore_signals(previous)


def end_with_parent() -> None:
    """End this process when the parent ends, even if the parent was killed.

    torch's workers also watch their parent, but this is the fork server, which ends only after all
    children have ended.
    """
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
