"""Many runs, each in its own folder, several at a time; finished ones are kept."""

from __future__ import annotations

import json
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
from dml_train.files import WriteRefused, write_json
from dml_train.processes.loaders import end_with_parent
from dml_train.processes.signals import STOP_SIGNALS, handle_signals
from dml_train.processes.stopping import Interrupted, StudyInterrupted, wake_at_death_of_parent
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training.run import train

_SECONDS = "seconds.json"  # a run's time, in its folder beside the files that `train` writes


@dataclass(frozen=True, slots=True)
class Job:
    """A run to train.

    Args:
        name: shown in progress.
        recipe: the run's.
        folder: the run's; an existing run, complete or not, is resumed.
    """

    name: str
    recipe: Recipe
    folder: Path


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
        metrics: dict[str, Any] = json.loads(
            RunFolder(self.job.folder).evaluation.read_text(encoding="utf-8")
        )
        return metrics

    def seconds(self) -> float | None:
        """Read the run's processor time; None if it was interrupted, or trained by another program."""
        path = self.job.folder / _SECONDS
        return float(json.loads(path.read_text(encoding="utf-8"))["processor"]) if path.is_file() else None


def run_all(
    jobs: Sequence[Job],
    *,
    processes: int = 1,
    registry: Registry,
    console: Console,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Train all runs, and return their outcomes in the order of the jobs. One that fails doesn't stop the others.

    Every process has an equal share of the cores. Results can differ in the last bits with the number of threads, and
    so with `processes`.

    Args:
        jobs: the runs. Jobs that share a folder must be the same run; it is trained once.
        processes: runs at a time; 1 trains in this process. Other processes use the installed components.
        registry: where this process finds components.
        console: where the progress of a run in this process is shown.
        on_end: called when a run has ended.

    Raises:
        DmlError: if a process died; finished runs are kept.
        WriteRefused: if the disk is full or refuses; the runs resume.
        StudyInterrupted: at SIGTERM or Ctrl-C.
    """
    distinct = {job.folder: job for job in jobs}
    ended: dict[Path, Outcome] = {}

    def end(job: Job, fault: str | None) -> None:
        ended[job.folder] = Outcome(job, fault)
        on_end(ended[job.folder])

    if processes == 1:
        for job in distinct.values():
            try:
                end(job, _train(job, registry, console))
            except Interrupted as error:
                raise StudyInterrupted(error.signal_number) from error
    else:
        _train_in_processes(list(distinct.values()), processes, end)
    return [Outcome(job, ended[job.folder].fault) for job in jobs]


def _train(job: Job, registry: Registry | None, console: Console) -> str | None:
    """Train a run; return why it failed, or None."""
    done_before = RunFolder(job.folder).evaluation.is_file()
    wall, processor = time.perf_counter(), time.process_time()
    try:
        train(_without_baselines(job.recipe), job.folder, resume=True, registry=registry, console=console)
    except WriteRefused:  # no fault of this run's settings, and the next one would have it, too
        raise
    except DmlError as error:
        return str(error)
    if not done_before:
        write_json(
            job.folder / _SECONDS,
            {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor},
        )
    return None


def _without_baselines(recipe: Recipe) -> Recipe:
    """Return the recipe without its baselines: runs of a study are compared with one another."""
    evaluation = recipe.evaluation.model_copy(update={"baselines": False})
    return recipe.model_copy(update={"evaluation": evaluation})


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
    """Train a run as `_train` does, unless a signal has interrupted an earlier run of this process."""
    global _signal_number
    if not _signal_number:  # the pool queues one run more than it has processes, and can't cancel it
        try:
            return _Result(_train(job, None, Console(quiet=True)))
        except Interrupted as error:  # returned, since it doesn't pickle
            _signal_number = error.signal_number
    return _Result(signal_number=_signal_number)
