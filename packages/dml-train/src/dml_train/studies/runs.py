"""Train runs in different folders, in parallel; finished runs are kept.

Any executor can be used, on this machine or on others. When a worker dies, a different worker will
resume the run from the last checkpoint.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.cluster.workers import (
    Expected,
    UnfitWorker,
    check_missing_package,
    expect,
    first_line,
)
from dml_train.files import FolderLocked, WriteRefused, read_json, write_json, write_text
from dml_train.processes.loaders import end_with_parent
from dml_train.processes.stopping import (
    Interrupted,
    StudyInterrupted,
    record_stop_signals,
    wake_at_death_of_parent,
)
from dml_train.progress import say
from dml_train.recipe.tables import Recipe
from dml_train.run_folder import RunFolder
from dml_train.training.run import list_differences, train

_SECONDS = "seconds.json"  # the file with a run's time, in the run's folder


@dataclass(frozen=True, slots=True)
class Job:
    """A run to train. Baselines are skipped, since the runs of a study are compared with each
    other.
    """

    name: str  # shown in progress
    recipe: Recipe
    folder: Path  # the run's folder; an existing run is resumed, complete or not

    def __post_init__(self) -> None:
        evaluation = self.recipe.evaluation.model_copy(update={"baselines": False})
        object.__setattr__(
            self, "recipe", self.recipe.model_copy(update={"evaluation": evaluation})
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    job: Job
    fault: str | None = None  # why it failed; None if it finished

    def metrics(self) -> dict[str, Any]:
        """Read the run's ``evaluation.json``."""
        return RunFolder(self.job.folder).read_evaluation()

    def seconds(self) -> float | None:
        """Read the run's processor time; None if neither a study nor ``dml train`` trained the
        run.
        """
        path = self.job.folder / _SECONDS
        return float(read_json(path)["processor"]) if path.is_file() else None


@contextmanager
def measure_seconds(folder: Path) -> Iterator[None]:
    """Write the duration of this context to the run's folder, unless the run was complete
    before.
    """
    done_before = RunFolder(folder).is_finished
    wall, processor = time.perf_counter(), time.process_time()
    yield
    if not done_before:
        spent = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
        write_json(folder / _SECONDS, spent)


def train_job(
    job: Job, registry: Registry | None, console: Console, *, seconds_for_lock: float = 0.0
) -> str | None:
    """Train a run, and return why it failed, or None. If the folder is locked, retry for
    `seconds_for_lock`.
    """
    give_up = time.monotonic() + seconds_for_lock
    while True:
        try:
            with measure_seconds(job.folder):
                train(job.recipe, job.folder, resume=True, registry=registry, console=console)
            return None
        except WriteRefused:  # the disk is the cause, and will make other runs fail, too
            raise
        except FolderLocked as error:
            if time.monotonic() >= give_up:
                return str(error)
            time.sleep(1.0)
        except DmlError as error:
            return str(error)


def list_commands(jobs: Iterable[Job]) -> list[str]:
    """Return a command for every unfinished run, once per folder; commands can be repeated.

    A new run's recipe is written to the run's folder, for the command to read. Relative paths in
    recipes start at the folder where a command is executed. Raise DmlError if a folder contains a
    different run, or writing fails.
    """
    commands = []
    for job in {job.folder: job for job in jobs}.values():
        folder = RunFolder(job.folder)
        list_differences(job.folder, job.recipe, resume=True, force=False)
        if folder.is_finished:
            continue
        if not folder.recipe.is_file():
            write_text(RunFolder.create(job.folder).recipe, job.recipe.to_toml())
        commands.append(f"{folder.resume_command} --no-report")
    return commands


MOST_DEATHS = (
    3  # a run fails after this number of dead workers if checkpoints aren't saved in between
)
# Processes of a dead node, or locks on a network file system, may exist for a while after the
# node's death.
SECONDS_FOR_LOCK = 120.0
_SECONDS_BETWEEN_LOOKS = 0.2


class Executor(Protocol):
    """An executor of concurrent.futures, submitit or Dask, or a `RayExecutor`.

    A submitted call must have ``done()`` and ``result()``, and can have ``cancel()``. An attribute
    ``most`` of the executor limits the number of calls that are submitted simultaneously.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Submit a call."""
        ...


def run_all(
    jobs: Sequence[Job],
    *,
    processes: int = 1,
    executor: Executor | None = None,
    registry: Registry,
    console: Console,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Train all runs, and return the outcomes in the order of the jobs. If a run fails, the others
    continue.

    The processes share the cores equally. The last bits of results can change with the number of
    threads, and therefore with `processes`.

    Args:
        jobs: the runs. Jobs with the same folder must be equal, and are trained once.
        processes: number of simultaneous runs; with 1, this process trains.
        executor: trains the runs instead of processes on this machine; the workers' number of
            threads isn't changed. Workers must have identical packages, and see the runs' folders
            and data under equal paths.
        registry: provides components to this process; other processes use the installed components.
        console: shows the progress of runs in this process.
        on_end: called when a run has ended.

    Raises:
        DmlError: if a process died; finished runs are kept.
        UnfitWorker: if a worker of the executor has different packages, or doesn't see the runs'
            folders.
        WriteRefused: if writing fails, for example on a full disk; the runs can resume.
        StudyInterrupted: on SIGTERM or Ctrl-C.
    """
    ended: dict[Path, Outcome] = {}

    def end(job: Job, fault: str | None) -> None:
        ended[job.folder] = Outcome(job, fault)
        on_end(ended[job.folder])

    distinct = list({job.folder: job for job in jobs}.values())
    if processes == 1 and executor is None:
        for job in distinct:
            try:
                end(job, train_job(job, registry, console))
            except Interrupted as error:
                raise StudyInterrupted(error.signal_number) from error
    else:
        unfinished = []
        for job in distinct:
            if RunFolder(job.folder).is_finished:
                end(
                    job, train_job(job, registry, Console(quiet=True))
                )  # only checks a finished run
            else:
                unfinished.append(job)
        if executor is None:
            with _start_processes(processes) as pool:
                # Don't submit more calls than processes, since the pool can't cancel queued calls.
                _train_by(pool, unfinished, processes, None, end, console)
        elif unfinished:
            shared = Path(os.path.commonpath([job.folder.parent.absolute() for job in unfinished]))
            most = getattr(executor, "most", None) or len(unfinished)
            with expect(registry, shared) as expected:
                _train_by(executor, unfinished, most, expected, end, console)
    return [Outcome(job, ended[job.folder].fault) for job in jobs]


def show_ends(jobs: Sequence[Job], console: Console) -> Callable[[Outcome], None]:
    """Return an `on_end` for `run_all` that counts the runs, and shows the recall and time, or the
    fault, per run.
    """
    total, numbers = len({job.folder for job in jobs}), itertools.count(1)

    def show(outcome: Outcome) -> None:
        text = outcome.fault
        if text is None:
            text = f"R@1 {outcome.metrics().get('recall@1', math.nan):.3f}"
            text += f" ({seconds:.0f} s)" if (seconds := outcome.seconds()) is not None else ""
        say(console, f"[{next(numbers)}/{total}] {outcome.job.name}: {text}")

    return show


@contextmanager
def _start_processes(count: int) -> Iterator[Executor]:
    pool = ProcessPoolExecutor(
        count,
        # Don't fork: this process may have threads, and a fork would copy locks.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_process,
        initargs=(max(1, (os.cpu_count() or 1) // count),),
    )
    try:
        yield pool
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()  # the child's run will save and stop
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_process(threads: int) -> None:
    torch.set_num_threads(threads)
    end_with_parent()
    wake_at_death_of_parent()  # so that this process ends even if it is suspended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent will stop this process using SIGTERM


@dataclass(frozen=True, slots=True)
class _Result:
    """How a run ended on a worker; if fields aren't set, the run finished. All fields can be
    pickled.
    """

    fault: str | None = None  # why the run failed
    stopped: str | None = None  # the signal or the worker's death after which the run can resume
    refusal: DmlError | None = None  # why the worker can't train any run


_training = threading.Lock()  # locked while this process trains


def train_there(job: Job, expected: Expected | None) -> _Result:
    """Check a worker, and train a run on it; `expected` is None for processes of this machine."""
    if not _training.acquire(blocking=False):
        shared = (
            "threads of a worker would train two runs at a time, but share torch's random numbers"
        )
        return _Result(
            refusal=UnfitWorker(f"{shared}; expected an executor that runs one call per process")
        )
    try:
        if expected is not None:
            expected.enter()
        seconds = 0.0 if expected is None else SECONDS_FOR_LOCK
        return _Result(train_job(job, None, Console(quiet=True), seconds_for_lock=seconds))
    except (
        UnfitWorker,
        WriteRefused,
    ) as error:  # don't raise it: some libraries replace a worker's error
        return _Result(refusal=error)
    except Interrupted as error:
        return _Result(stopped=str(error))
    finally:
        _training.release()


def _train_by(
    executor: Executor,
    jobs: Sequence[Job],
    most: int,
    expected: Expected | None,
    end: Callable[[Job, str | None], None],
    console: Console,
) -> None:
    """Train runs with an executor, `most` at a time, until all end or too many workers of a run
    die; see `run_all`.
    """
    waiting, pending = deque(jobs), list[tuple[Any, Job]]()
    deaths: Counter[Path] = (
        Counter()
    )  # number of dead workers since the last new checkpoint, by run
    checkpoints: dict[Path, list[Path]] = {}

    def resumes(job: Job) -> bool:
        now = sorted(RunFolder(job.folder).checkpoints.glob("*"))
        if checkpoints.get(job.folder) != now:
            deaths[job.folder], checkpoints[job.folder] = 0, now
        deaths[job.folder] += 1
        return deaths[job.folder] < MOST_DEATHS

    try:
        # The signal handler mustn't raise an error, which would become a SystemError in the middle
        # of Ray's code.
        with record_stop_signals() as stop:
            while waiting or pending:
                if stop.signal_number:
                    raise StudyInterrupted(stop.signal_number)
                while waiting and len(pending) < most:
                    job = waiting.popleft()
                    there = replace(job, folder=job.folder.absolute())
                    pending.append((executor.submit(train_there, there, expected), job))
                place = next((n for n, (call, _) in enumerate(pending) if call.done()), None)
                if place is None:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                    continue
                call, job = pending.pop(place)
                # An error from a process on this machine is a bug; from elsewhere, it can mean that
                # the worker died.
                result: _Result = call.result() if expected is None else _take(call)
                if result.refusal is not None:
                    raise result.refusal
                if result.stopped is None:
                    end(job, result.fault)
                elif resumes(job):
                    say(console, f"{job.name}: {result.stopped}; it resumes elsewhere")
                    waiting.appendleft(job)
                else:
                    fault = (
                        f"{MOST_DEATHS} workers ended without a checkpoint in between; "
                        f"{result.stopped}"
                    )
                    end(job, fault)
    except BrokenExecutor as error:
        raise DmlError(
            "a training process died, which stops the executor; if it was killed for lack of "
            "memory, train fewer runs at a time. Finished work is kept: the same call or command "
            "resumes the rest"
        ) from error
    finally:
        for call, _ in pending:
            if callable(cancel := getattr(call, "cancel", None)):
                cancel()


def _take(call: Any) -> _Result:
    """Return a call's result; if the worker died, return that the run stopped."""
    try:
        result: _Result = call.result()
    except BrokenExecutor:
        raise
    except Exception as error:  # libraries raise different errors if a worker dies
        check_missing_package(error)
        return _Result(stopped=f"its worker ended ({type(error).__name__}: {first_line(error)})")
    return result
