"""A seeded, resumable search for settings by Optuna: the loop over its trials."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from dml_train.cluster.executors import Executor
from dml_train.files import FolderLocked, WriteRefused, lock_folder
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import Job, Outcome, run_all
from dml_train.studies.tuning.search import SettingsSearch, Trial, format_settings
from dml_train.studies.tuning.space import Scalar
from dml_train.studies.tuning.trials import RANDOM_TRIALS, TrialStore, open_trials


def run_search(
    plan: SettingsSearch,
    out: Path,
    trials: int,
    *,
    console: Console,
    processes: int = 1,
    executor: Executor | None = None,
    join: bool = False,
    storage: str | None = None,
) -> list[Trial]:
    """Run trials until `out` has `trials` of them, and return all in order.

    Args:
        plan: the search.
        out: receives the trials' journal and a folder for each trial's trainings. An existing search resumes.
        trials: the total number; those in `out` count.
        console: shows progress.
        processes: trainings at a time, of one trial.
        executor: trains, instead of processes of this machine; see `run_all`.
        join: whether to work on one search together with other machines, each of which calls this function with the
            same arguments. A trial whose machine died resumes on another one. Trials that others still train have no
            result yet, and aren't returned.
        storage: with `join`, the URL of a database that keeps the trials; default: the journal.

    Raises:
        DmlError: if optuna isn't installed, `out` is another search's, or another process searches in it and `join` is
            false.
        StudyInterrupted: as `run_all`.
    """
    with open_trials(plan, out, console, join=join, storage=storage) as store:
        while _train_next(store, console, processes, executor) or store.ask(trials):
            pass
        return [
            Trial(t.number, dict(t.params), t.value, _seconds(plan, dict(t.params), _folder(out, t.number)))
            for t in store.chosen()
            if t.state.is_finished()
        ]


def list_trainings(plan: SettingsSearch, out: Path, trials: int, console: Console) -> list[Job]:
    """Return the unfinished trainings whose settings are known, for execution by other means.

    The first `RANDOM_TRIALS` trials don't depend on values, so all of them are listed at once; then one trial at a
    time, as its settings depend on all earlier values. Trials whose trainings are complete are counted first.

    Args:
        plan, out, trials, console: as of `run_search`.

    Raises:
        DmlError: as `run_search`.
    """
    with open_trials(plan, out, console) as store:
        while True:
            waiting: list[Job] = []
            for number, settings in store.unfinished():
                jobs = _jobs(plan, settings, _folder(out, number))
                if all(RunFolder(job.folder).is_finished for job in jobs):
                    store.tell(number, _value(plan, [Outcome(job) for job in jobs]))
                else:
                    waiting += jobs
            if (waiting and len(store.chosen()) >= RANDOM_TRIALS) or not store.ask(trials):
                return waiting


def _train_next(store: TrialStore, console: Console, processes: int, executor: Executor | None) -> bool:
    """Train the first trial that no other process trains, and record its value; return whether there was one."""
    for number, settings in store.unfinished():
        folder = _folder(store.out, number)
        with ExitStack() as until_the_end:
            if store.joint:
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    until_the_end.enter_context(lock_folder(folder, f"training trial {number}"))
                except FolderLocked:
                    continue
                except OSError as error:
                    raise WriteRefused(f"can't make the folder {folder}: {error.strerror}") from error
                if number not in dict(store.unfinished()):  # another process ended it before it was locked
                    continue
            jobs = _jobs(store.plan, settings, folder)
            outcomes = run_all(
                jobs, processes=processes, executor=executor, registry=store.plan.registry, console=console
            )
            faults = [outcome.fault for outcome in outcomes if outcome.fault is not None]
            for fault in dict.fromkeys(faults):
                console.print(fault, markup=False, highlight=False, soft_wrap=True)
            value = None if faults else _value(store.plan, outcomes)
            store.tell(number, value)
            console.print(
                f"trial {number}: {format_settings(settings)}: "
                + ("failed" if value is None else f"{store.plan.metric} {value:.4f}"),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            return True
    return False


def _value(plan: SettingsSearch, outcomes: list[Outcome]) -> float:
    """Return a trial's value: the mean over its folds."""
    return statistics.fmean(outcome.metrics()[plan.metric] for outcome in outcomes)


def _jobs(plan: SettingsSearch, settings: dict[str, Scalar], folder: Path) -> list[Job]:
    return [
        Job(f"{folder.name}, fold {fold}", recipe, folder / f"fold-{fold}")
        for fold, recipe in enumerate(plan.recipes(settings))
    ]


def _seconds(plan: SettingsSearch, settings: dict[str, Scalar], folder: Path) -> float:
    return sum(Outcome(job).seconds() or 0.0 for job in _jobs(plan, settings, folder))


def _folder(out: Path, number: int) -> Path:
    return out / "trials" / f"{number:04d}"
