"""Many runs, each in a folder of its own, several at a time; what is done already is left as it is."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.files import write_json
from dml_train.processes.loaders import end_with_parent
from dml_train.processes.stopping import Interrupted
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training.run import train

_SECONDS = "seconds.json"  # how long a run of many took, beside what `train` leaves


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be done.

    Args:
        name: what it is called where progress is shown.
        recipe: what to do.
        folder: where; a run that is there already, whole or not, is gone on with.
    """

    name: str
    recipe: Recipe
    folder: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Args:
        job: the run.
        fault: why it couldn't be finished; None if it was.
    """

    job: Job
    fault: str | None = None

    def metrics(self) -> dict[str, Any]:
        """What the run's ``evaluation.json`` holds."""
        metrics: dict[str, Any] = json.loads(
            RunFolder(self.job.folder).evaluation.read_text(encoding="utf-8")
        )
        return metrics

    def seconds(self) -> float | None:
        """Processor time that the run took; None where it was begun by somebody else, or stopped in between."""
        path = self.job.folder / _SECONDS
        return float(json.loads(path.read_text(encoding="utf-8"))["processor"]) if path.is_file() else None


class Stopped(Interrupted):
    """Many runs were asked to stop; those under way saved a checkpoint.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        Exception.__init__(
            self,
            f"stopped by {signal.Signals(number).name}; what was done is kept: the same command goes on from there",
        )


def run_all(
    jobs: Sequence[Job],
    *,
    processes: int = 1,
    registry: Registry,
    console: Console,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Do all runs, and say how each ended, in their order. One that fails doesn't stop the others.

    Every process has an equal share of the cores. What is computed can differ in the last bits with the number of
    threads, and so with `processes`.

    Args:
        jobs: the runs. Those with one folder must be one run; it is done once.
        processes: how many at a time; 1: in this process. Others find their components in what is installed.
        registry: where this process finds them.
        console: where the progress of a run in this process is shown.
        told: called when a run has ended.

    Raises:
        DmlError: if a process died; what was done is kept.
        Stopped: SIGTERM or Ctrl-C came.
    """
    distinct = {job.folder: job for job in jobs}
    ended: dict[Path, Outcome] = {}

    def note(job: Job, fault: str | None) -> None:
        ended[job.folder] = Outcome(job, fault)
        told(ended[job.folder])

    if processes == 1:
        for job in distinct.values():
            try:
                note(job, _do(job, registry, console))
            except Interrupted as error:
                raise Stopped(error.number) from error
    else:
        _in_processes(list(distinct.values()), processes, note)
    return [Outcome(job, ended[job.folder].fault) for job in jobs]


def _do(job: Job, registry: Registry | None, console: Console) -> str | None:
    """One run; why it couldn't be finished, if so."""
    done_before = RunFolder(job.folder).evaluation.is_file()
    wall, processor = time.perf_counter(), time.process_time()
    try:
        train(job.recipe, job.folder, resume=True, registry=registry, console=console)
    except DmlError as error:
        return str(error)
    if not done_before:
        write_json(
            job.folder / _SECONDS,
            {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor},
        )
    return None


# ------------------------------------------------------------------------------------------ in other processes


def _in_processes(jobs: list[Job], processes: int, note: Callable[[Job, str | None], None]) -> None:
    pool = ProcessPoolExecutor(
        processes,
        # Not fork: this process may have threads, and a fork would copy their locks.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin_process,
        initargs=(max(1, (os.cpu_count() or 1) // processes),),
    )
    waiting: dict[Future[str | int | None], Job] = {}
    try:
        with _stopping():
            waiting = {pool.submit(_do_there, job): job for job in jobs}
            for future, job in _as_they_end(waiting):
                result = future.result()
                if isinstance(result, int):
                    raise Stopped(result)
                note(job, result)
    except BrokenProcessPool as error:
        raise DmlError(
            "a process that trained died; if it was killed for memory, use fewer processes. "
            "The same command goes on where this one stopped"
        ) from error
    finally:
        # On the way out by an error or a signal, runs under way are asked to save and stop.
        if any(not future.done() for future in waiting):
            for child in multiprocessing.active_children():
                child.terminate()
        pool.shutdown(cancel_futures=True)


def _as_they_end(
    waiting: dict[Future[str | int | None], Job],
) -> Iterator[tuple[Future[str | int | None], Job]]:
    left = dict(waiting)
    while left:
        for future in wait(left, return_when=FIRST_COMPLETED).done:
            yield future, left.pop(future)


def _begin_process(threads: int) -> None:
    torch.set_num_threads(threads)
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one says when to stop


_asked_to_stop = 0  # in a process of the pool: the signal's number, once one came


def _do_there(job: Job) -> str | int | None:
    """As `_do`, in a process of its own; a signal's number if it was asked to stop, then and from then on."""
    global _asked_to_stop
    if not _asked_to_stop:  # the pool hands out one run more than it has processes, which can't be taken back
        try:
            return _do(job, None, Console(quiet=True))
        except Interrupted as error:  # it wouldn't survive being sent
            _asked_to_stop = error.number
    return _asked_to_stop


@contextmanager
def _stopping() -> Iterator[None]:
    """While it lasts, SIGTERM and Ctrl-C are an exception, so that the processes that were started are told."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
