"""Tasks on any map: pure functions of their arguments, which may run twice, elsewhere, and in any order."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import dml_eval_rs._native as _native

VERSION = _native.VERSION

Function = Callable[..., Any]  # of a task's entries, importable by its name
Key = tuple[str, int, int]  # what a task does, and the numbers of the blocks that it reads


class Map(Protocol):
    """A function like the `map` of an executor of `concurrent.futures`, of one iterable.

    It calls the function at least once per task and returns the results in any order, also twice. A task is a tuple;
    several tasks share entries, so a map may send each entry separately.
    """

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterable[Any]:
        """Return the results of the function for all tasks."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """The first entry of a task.

    Attributes:
        key: the task's key.
        call: a digest of the call's arguments, which tells results of other calls.
        options: options of the function.
        version: dml-eval-rs's version in the driver.
    """

    key: Key
    call: str
    options: Any
    version: str = VERSION


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a task: the function's value, with the key and call of the task's work."""

    key: Key
    call: str
    value: Any


@dataclass(frozen=True, slots=True)
class Runner:
    """A picklable function of one task, a tuple."""

    function: Function

    def __call__(self, task: tuple[Any, ...]) -> Result:
        """Return the result of a task."""
        work: Work = task[0]
        if work.version != VERSION:
            raise ValueError(
                f"dml-eval-rs is {VERSION} on {socket.gethostname()} and {work.version} in the driver; expected "
                "the same version on every worker"
            )
        return Result(work.key, work.call, self.function(*task))


def run_tasks(
    map: Map, function: Function, tasks: Iterator[tuple[Any, ...]], describe: Callable[[Key], str]
) -> Iterator[tuple[Key, Any]]:
    """Yield the key and value of every task once, in the order of the results.

    Args:
        map: calls the function.
        function: a function of the tasks' entries; the first is the task's `Work`.
        tasks: the tasks, with different keys.
        describe: returns the names of a task's shards, for errors.

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
        if result.key in waiting:  # otherwise the task ran twice: its first result counts
            done[result.key] = waiting.pop(result.key)
            yield result.key, result.value
    waiting.update((task[0].key, task[0].call) for task in issued)  # tasks that the map didn't take
    if waiting:
        raise ValueError(
            f"map returned no result of {len(waiting)} of {len(waiting) + len(done)} tasks, first that of "
            f"{describe(next(iter(waiting)))}; expected one of each: let the map retry lost tasks"
        )
