"""Many runs, each in its own folder, several at a time; finished ones are kept."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.cluster.executors import Executor
from dml_train.files import FolderLocked, WriteRefused
from dml_train.processes.loaders import end_with_parent
from dml_train.processes.signals import STOP_SIGNALS, handle_signals
from dml_train.processes.stopping import Interrupted, StudyInterrupted, wake_at_death_of_parent
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.studies.seconds import measure_seconds, read_seconds
from dml_train.training.run import train


@dataclass(frozen=True, slots=True)
class Job:
    """A run to train.

    Args:
        name: shown in progress.
        recipe: the run's; its baselines are dropped, since runs of a study are compared with one another.
        folder: the run's; an existing run, complete or not, is resumed.
    """

    name: str
    recipe: Recipe
    folder: Path

    def __post_init__(self) -> None:
        evaluation = self.recipe.evaluation.model_copy(update={"baselines": False})
        object.__setattr__(self, "recipe", self.recipe.model_copy(update={"evaluation": evaluation}))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Args:
        job: the run.
        fault: why it failed; None if it finished.
    """

    job: Job
    fault: str | None = None

    def metrics(self) -> dict[str, Any]:
        """Read the run's ``evaluation.json``."""
        return RunFolder(self.job.folder).read_evaluation()

    def seconds(self) -> float | None:
        """Read the run's processor time; None if no study and no ``dml train`` trained it."""
        return read_seconds(self.job.folder)


def run_all(
    jobs: Sequence[Job],
    *,
    processes: int = 1,
    executor: Executor | None = None,
    registry: Registry,
    console: Console,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Train all runs, and return their outcomes in the order of the jobs. One that fails doesn't stop the others.

    Every process has an equal share of the cores. Results can differ in the last bits with the number of threads, and
    so with `processes`.

    An `executor` trains them on other machines, each with the number of threads that its library sets. A run whose
    worker dies resumes on another from its last checkpoint.

    Args:
        jobs: the runs. Jobs that share a folder must be the same run; it is trained once.
        processes: runs at a time; 1 trains in this process. Other processes use the installed components.
        executor: trains the runs, instead of processes of this machine. Its workers need the same packages, and must
            see the runs' folders and data under the same paths.
        registry: where this process finds components.
        console: where the progress of a run in this process is shown.
        on_end: called when a run has ended.

    Raises:
        DmlError: if a process died; finished runs are kept.
        UnfitWorker: if a worker of the executor has other packages, or doesn't see the runs' folders.
        WriteRefused: if the disk is full or refuses; the runs resume.
        StudyInterrupted: at SIGTERM or Ctrl-C.
    """
    distinct = {job.folder: job for job in jobs}
    ended: dict[Path, Outcome] = {}

    def end(job: Job, fault: str | None) -> None:
        ended[job.folder] = Outcome(job, fault)
        on_end(ended[job.folder])

    if executor is not None:
        from dml_train.studies.elsewhere import train_elsewhere

        train_elsewhere(list(distinct.values()), executor, end, registry, console)
    elif processes == 1:
        for job in distinct.values():
            try:
                end(job, train_job(job, registry, console))
            except Interrupted as error:
                raise StudyInterrupted(error.signal_number) from error
    else:
        _train_in_processes(list(distinct.values()), processes, end)
    return [Outcome(job, ended[job.folder].fault) for job in jobs]


def train_job(
    job: Job, registry: Registry | None, console: Console, *, seconds_for_lock: float = 0.0
) -> str | None:
    """Train a run; return why it failed, or None.

    Args:
        job: the run.
        registry: provides the components; None: all installed ones.
        console: shows progress.
        seconds_for_lock: how long to wait if another process works in the run's folder: perhaps it is about to end.
    """
    give_up = time.monotonic() + seconds_for_lock
    while True:
        try:
            with measure_seconds(job.folder):
                train(job.recipe, job.folder, resume=True, registry=registry, console=console)
        except WriteRefused:  # no fault of this run's settings, and the next one would have it, too
            raise
        except FolderLocked as error:
            if time.monotonic() >= give_up:
                return str(error)
            time.sleep(1.0)
        except DmlError as error:
            return str(error)
        else:
            return None


# ------------------------------------------------------------------------------------------ in other processes


@dataclass(frozen=True, slots=True)
class _Result:
    """How a run ended in a process of the pool: by a fault, by a signal, or, without either, finished."""

    fault: str | None = None
    signal_number: int = 0


def _train_in_processes(jobs: list[Job], processes: int, end: Callable[[Job, str | None], None]) -> None:
    pool = ProcessPoolExecutor(
        processes,
        # Not fork: this process may have threads, and a fork would copy their locks.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_process,
        initargs=(max(1, (os.cpu_count() or 1) // processes),),
    )
    pending: dict[Future[_Result], Job] = {}
    try:
        with handle_signals(STOP_SIGNALS, _interrupt):
            pending = {pool.submit(_train_in_process, job): job for job in jobs}
            for future in as_completed(pending):
                result = future.result()
                if result.signal_number:
                    raise StudyInterrupted(result.signal_number)
                end(pending[future], result.fault)
    except BrokenProcessPool as error:
        raise DmlError(
            "a process that trained died; if it was killed for memory, use fewer processes. "
            "Finished work is kept: the same call or command resumes the rest"
        ) from error
    finally:
        # After an error or a signal, unfinished runs save and stop.
        if any(not future.done() for future in pending):
            for child in multiprocessing.active_children():
                child.terminate()
        pool.shutdown(cancel_futures=True)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise StudyInterrupted(number)


def _start_process(threads: int) -> None:
    torch.set_num_threads(threads)
    end_with_parent()
    wake_at_death_of_parent()  # to end then, even if this process is suspended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops this process by SIGTERM


_signal_number = 0  # in a process of the pool: the signal that interrupted its run


def _train_in_process(job: Job) -> _Result:
    """Train a run as `train_job` does, unless a signal has interrupted an earlier run of this process."""
    global _signal_number
    if not _signal_number:  # the pool queues one run more than it has processes, and can't cancel it
        try:
            return _Result(train_job(job, None, Console(quiet=True)))
        except Interrupted as error:  # returned, since it doesn't pickle
            _signal_number = error.signal_number
    return _Result(signal_number=_signal_number)
