"""Imported by the server that forks loaders, and nowhere else: what it forks for others hears what asks it to stop.

Their signals had been put off with the server's, for the loaders' sake, and `Process.terminate` would do nothing.
"""

from __future__ import annotations

from multiprocessing import current_process
from multiprocessing.util import register_after_fork

from dml_train.processes.loaders import Loader, hear


def _hear_unless_loader(_: type[Loader]) -> None:
    if not isinstance(current_process(), Loader):
        hear()


register_after_fork(Loader, _hear_unless_loader)
