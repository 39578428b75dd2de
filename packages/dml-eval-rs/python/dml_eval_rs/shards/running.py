"""Tasks on any map: each a function of its arguments, which may run twice, elsewhere, or in any order."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from dml_eval_rs import __version__

Key = tuple[str, int, int]  # of a task: what it does, and the blocks that it reads


class Map(Protocol):
    """A function of the shape of `concurrent.futures.Executor.map`, of one iterable.

    It calls the function once for each task, or more often, and returns the results in any order; results may come
    twice. A task is a tuple whose entries a map may send separately, since several tasks share them.
    """

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterable[Any]:
        """Return the results of the function for all tasks."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a task does.

    Attributes:
        key: the task's.
        call: a digest of the call's arguments, by which results of another call are noticed.
        version: of dml-eval-rs in the driver.
        options: of the function.
    """

    key: Key
    call: str
    version: str
    options: Any


@dataclass(frozen=True, slots=True)
class Result:
    """What a task returns.

    Attributes:
        key, call: those of its work.
        value: what its function returned.
    """

    key: Key
    call: str
    value: Any


class Function(Protocol):
    """A function of a task's entries, importable by its name."""

    def __call__(self, work: Work, /, *parts: Any) -> Any:
        """Return the value of a task."""
        ...


@dataclass(frozen=True, slots=True)
class Runner:
    """A picklable function of one task, a tuple."""

    function: Function

    def __call__(self, task: tuple[Any, ...]) -> Result:
        """Return the result of a task."""
        work: Work = task[0]
        if work.version != __version__:
            raise ValueError(
                f"dml-eval-rs is {__version__} on {socket.gethostname()} and {work.version} in the driver; expected "
                "the same version on every worker"
            )
        return Result(work.key, work.call, self.function(*task))


def run_tasks(
    map: Map, function: Function, tasks: Iterator[tuple[Any, ...]], describe: Callable[[Key], str]
) -> Iterator[tuple[Key, Any]]:
    """Yield the key and value of every task once, as they come.

    Args:
        map: calls the function.
        function: of the tasks' entries; the first is the task's `Work`.
        tasks: of one call, with different keys.
        describe: names a task's shards, for errors.

    Raises:
        TypeError: if the map returns anything but the function's results.
        ValueError: if a result is missing, or is that of another call.
    """
    waiting: dict[Key, str] = {}
    done: dict[Key, str] = {}

    def issue() -> Iterator[tuple[Any, ...]]:
        for task in tasks:
            waiting[task[0].key] = task[0].call
            yield task

    issued = issue()
    for result in map(Runner(function), issued):
        if not isinstance(result, Result):
            raise TypeError(
                f"map returned a {type(result).__name__}; expected the results of the function that it was given: a "
                "map of futures must wait for them"
            )
        if result.call not in (waiting.get(result.key), done.get(result.key)):
            raise ValueError(
                "map returned a result of another call; expected those of the tasks that it was given"
            )
        if result.key in waiting:  # otherwise a task ran twice; its first result stands
            done[result.key] = waiting.pop(result.key)
            yield result.key, result.value
    waiting.update((task[0].key, task[0].call) for task in issued)  # those that the map didn't take
    if waiting:
        raise ValueError(
            f"map returned no result of {len(waiting)} of {len(waiting) + len(done)} tasks, first that of "
            f"{describe(next(iter(waiting)))}; expected one of each: let the map retry lost tasks"
        )
