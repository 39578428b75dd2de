"""Runs on other machines, by any executor: a run whose worker dies resumes on another from its last checkpoint."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.cluster.executors import Executor, Task, cancel, wait_for_any
from dml_train.cluster.workers import Expected, UnfitWorker, expect
from dml_train.files import WriteRefused
from dml_train.processes.signals import STOP_SIGNALS, handle_signals
from dml_train.processes.stopping import Interrupted, StudyInterrupted
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import Job, train_job

MOST_DEATHS = 3  # of a run's workers without a new checkpoint between them; then the run has failed
SECONDS_FOR_LOCK = (
    120.0  # a dead node's processes, or its locks on a network file system, may outlive it for a while
)


@dataclass(frozen=True, slots=True)
class _Result:
    """How a run ended on a worker: by one of these, or, without any, finished. Plain strings pickle everywhere."""

    fault: str | None = None
    stopped: str | None = None
    refused: str | None = None
    unfit: str | None = None


def train_elsewhere(
    jobs: Sequence[Job],
    executor: Executor,
    end: Callable[[Job, str | None], None],
    registry: Registry,
    console: Console,
) -> None:
    """Train runs by an executor; `end` is called for each when it has finished or failed.

    Raises:
        UnfitWorker: if a worker has other packages, or doesn't see the runs' folders.
        WriteRefused: if a worker's disk is full or refuses.
        DmlError: if the executor is broken as a whole.
        StudyInterrupted: at SIGTERM or Ctrl-C.
    """
    unfinished = []
    for job in jobs:
        if RunFolder(job.folder).is_finished:
            end(job, train_job(job, registry, Console(quiet=True)))  # which only checks it
        else:
            unfinished.append(job)
    if not unfinished:
        return
    distributions = {"dml-train", "torch", *(p.distribution for p in registry.plugins.providers)}
    shared = Path(os.path.commonpath([job.folder.parent.absolute() for job in unfinished]))
    with expect(distributions, shared) as expected:
        calls = _Calls(unfinished, executor, expected, console)
        try:
            with handle_signals(STOP_SIGNALS, _interrupt):
                for job, fault in calls.run():
                    end(job, fault)
        except BrokenExecutor as error:
            raise DmlError(
                "a process that trained died, and with it the executor; if it was killed for memory, train fewer "
                "runs at a time. Finished work is kept: the same call or command resumes the rest"
            ) from error
        finally:
            calls.cancel()


class _Calls:
    """The calls that train runs: each run's is repeated until it has ended, or too many workers have died.

    Args:
        jobs: the runs.
        executor: submits the calls.
        expected: what workers must have.
        console: shows the deaths of workers.
    """

    def __init__(self, jobs: Sequence[Job], executor: Executor, expected: Expected, console: Console) -> None:
        self._executor, self._expected, self._console = executor, expected, console
        self._most = getattr(executor, "most", None) or len(jobs)
        self._waiting = deque(jobs)
        self._pending: dict[int, tuple[Task, Job]] = {}  # by the identity of the task, which may not hash
        self._deaths: Counter[Path] = Counter()  # since the last new checkpoint
        self._checkpoints: dict[Path, list[str]] = {}

    def run(self) -> Iterator[tuple[Job, str | None]]:
        """Yield each run as it ends, with its fault or None."""
        while self._waiting or self._pending:
            while self._waiting and len(self._pending) < self._most:
                self._submit(self._waiting.popleft())
            for task in wait_for_any([task for task, _ in self._pending.values()]):
                _, job = self._pending.pop(id(task))
                result = self._take(task)
                if result.unfit is not None:
                    raise UnfitWorker(result.unfit)
                if result.refused is not None:
                    raise WriteRefused(result.refused)
                if result.stopped is None:
                    yield job, result.fault
                elif not self._resume(job, result.stopped):
                    yield (
                        job,
                        f"{MOST_DEATHS} workers ended without a checkpoint in between; {result.stopped}",
                    )

    def cancel(self) -> None:
        """Ask the calls that haven't ended to stop."""
        for task, _ in self._pending.values():
            cancel(task)

    def _submit(self, job: Job) -> None:
        there = replace(job, folder=job.folder.absolute())
        task = self._executor.submit(train_there, there, self._expected)
        self._pending[id(task)] = (task, job)

    def _take(self, task: Task) -> _Result:
        """Take a call's result; the death of its worker counts as a stop."""
        try:
            result: _Result = task.result()
        except BrokenExecutor:
            raise
        except Exception as error:  # each library has its own for a dead worker
            _refuse_missing_package(error)
            return _Result(stopped=f"its worker ended ({_first_line(error)})")
        return result

    def _resume(self, job: Job, reason: str) -> bool:
        """Let a run resume, unless its workers died too often; return whether it does."""
        if self._checkpoints.get(job.folder) != (now := _list_checkpoints(job)):
            self._deaths[job.folder], self._checkpoints[job.folder] = 0, now
        self._deaths[job.folder] += 1
        if self._deaths[job.folder] >= MOST_DEATHS:
            return False
        self._console.print(
            f"{job.name}: {reason}; it resumes elsewhere", markup=False, highlight=False, soft_wrap=True
        )
        self._waiting.appendleft(job)
        return True


_training = threading.Lock()  # held while this process trains


def train_there(job: Job, expected: Expected) -> _Result:
    """Train a run on a worker, after checks of the worker."""
    if not _training.acquire(blocking=False):
        return _Result(
            unfit="a worker would train two runs at a time in threads, which share torch's random numbers; "
            "expected an executor with one run a process"
        )
    try:
        expected.check_this_process()
        expected.enter()
        return _Result(fault=train_job(job, None, Console(quiet=True), seconds_for_lock=SECONDS_FOR_LOCK))
    except UnfitWorker as error:
        return _Result(unfit=str(error))
    except WriteRefused as error:
        return _Result(refused=str(error))
    except Interrupted as error:
        return _Result(stopped=str(error))
    finally:
        _training.release()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise StudyInterrupted(number)


def _list_checkpoints(job: Job) -> list[str]:
    folder = RunFolder(job.folder).checkpoints
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _refuse_missing_package(error: Exception) -> None:
    """Tell a worker without a package, which can't even load the call, from a dead one.

    Raises:
        UnfitWorker: that names the package.
    """
    if missing := re.search(r"No module named '([\w.]+)'", str(error)):
        raise UnfitWorker(
            f"a worker lacks the package {missing[1]}; install the same packages on all machines"
        ) from error
