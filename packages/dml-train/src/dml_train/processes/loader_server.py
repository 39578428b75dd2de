"""Unblock signals in processes that aren't loaders; only the server that forks loaders imports this
module.

The server blocks SIGTERM and SIGINT so that loaders inherit the mask. If other children inherited
it, too, `Process.terminate` would be ignored.
"""

from __future__ import annotations

from multiprocessing import current_process
from multiprocessing.util import register_after_fork

from dml_train.processes.loaders import Loader
from dml_train.processes.signals import unblock_signals


def _unblock_unless_loader(_: type[Loader]) -> None:
    if not isinstance(current_process(), Loader):
        unblock_signals()


register_after_fork(Loader, _unblock_unless_loader)
