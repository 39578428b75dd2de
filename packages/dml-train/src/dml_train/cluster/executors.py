"""Executors of other libraries: anything with the shape of concurrent.futures."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent import futures
from typing import Any, Protocol, TypeVar, runtime_checkable

_SECONDS_BETWEEN_LOOKS = 0.2


@runtime_checkable
class Task(Protocol):
    """A submitted call, as a `concurrent.futures.Future` or a job of submitit."""

    def done(self) -> bool:
        """Return whether the call has ended, in whatever way."""
        ...

    def result(self) -> Any:
        """Return the call's result, or raise its error or that of the death of its worker."""
        ...


@runtime_checkable
class Executor(Protocol):
    """What submits calls to other processes: of concurrent.futures, submitit or Dask, or a `RayExecutor`.

    If it has an attribute `most`, a number, at most so many calls are submitted at a time.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Submit a call; return a `Task`."""
        ...


Some = TypeVar("Some", bound=Task)


def wait_for_any(tasks: Collection[Some]) -> list[Some]:
    """Wait until at least one of the tasks has ended; return those that have."""
    if len(waitable := [task for task in tasks if isinstance(task, futures.Future)]) == len(tasks):
        futures.wait(waitable, return_when=futures.FIRST_COMPLETED)
    while not (done := [task for task in tasks if task.done()]):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return done


def cancel(task: Task) -> None:
    """Ask a task to stop, if its library can."""
    stop = getattr(task, "cancel", None)
    if callable(stop):
        stop()
