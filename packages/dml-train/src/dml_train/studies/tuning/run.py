"""Search for settings: the loop over trials, and the files of the result."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from dml_core import DmlError, Registry
from dml_core import registry as installed
from dml_train.files import FolderLocked, lock_folder, make_folder, write_json, write_text
from dml_train.progress import say
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import read
from dml_train.run_folder import RunFolder
from dml_train.studies.runs import Executor, Job, Outcome, run_all
from dml_train.studies.tuning.search import SettingsSearch, Space, Trial, best_trial, format_value
from dml_train.studies.tuning.trials import RANDOM_TRIALS, TrialStore


class TuningResult(NamedTuple):
    """The result of `tune`."""

    search: SettingsSearch
    trials: Sequence[Trial]  # the finished trials
    pages: Sequence[Path]  # a page, a JSON file, and the recipe with the best settings

    @property
    def best(self) -> Trial:
        """The first trial with the highest value."""
        return best_trial(self.trials)


def tune(
    source: str | Path,
    space: Space,
    out: str | Path,
    *,
    trials: int,
    folds: int | None = None,
    seed: int = 0,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    processes: int = 1,
    executor: Executor | None = None,
    registry: Registry | None = None,
    console: Console | None = None,
) -> TuningResult:
    """Search settings of a recipe on held-out training classes; the test classes stay unseen.

    To search on multiple machines, call this function on all with the same arguments, and `out` in
    a shared folder. The values that are known when a trial is chosen then depend on the speed of
    the machines.

    Raise DmlError if optuna isn't installed, the recipe doesn't hold out classes, `space` doesn't
    fit the recipe, or `out` belongs to a different search. Raise StudyInterrupted on SIGTERM or
    Ctrl-C.

    Args:
        source, overrides: the recipe, see `dml_train.load_recipe`.
        space: the keys to vary, for example ``{"optimizer.lr": Range(1e-4, 1e-2, log=True)}``.
        out: the folder for trials and results. An existing search will resume, and can be extended
            using more trials.
        trials: the total number of trials.
        folds: the number of class-disjoint folds of the training classes, held out in turn;
            default: use the classes that the recipe holds out.
        seed: the seed for choosing settings.
        processes: number of simultaneous trainings, all of the same trial.
        executor, registry, console: see `reproduce`.
    """
    out, console = Path(out), console or Console(quiet=True)
    search = SettingsSearch(read(source, overrides)[0], space, folds, seed, registry or installed())
    done = run_search(search, out, trials, console, processes=processes, executor=executor)
    if not done:
        raise DmlError(
            f"none of the {trials} trials has ended on other machines; search again later"
        )
    return TuningResult(search, done, write(search, done, out, Path(source).stem))


def run_search(
    plan: SettingsSearch,
    out: Path,
    trials: int,
    console: Console,
    *,
    processes: int = 1,
    executor: Executor | None = None,
) -> list[Trial]:
    """Run trials until `trials` exist, and return finished trials, sorted by number; see `tune` for
    the arguments.

    Trials that other machines still train aren't returned. If a machine dies, a different machine
    resumes the trial.
    """
    store = TrialStore(plan, out)
    while _train_next(store, console, processes, executor) or store.ask(trials):
        pass
    return [
        Trial(
            trial.number,
            dict(trial.params),
            trial.value,
            sum(Outcome(job).seconds() or 0.0 for job in store.jobs(trial)),
        )
        for trial in store.chosen()
        if trial.state.is_finished()
    ]


def list_trainings(plan: SettingsSearch, out: Path, trials: int) -> list[Job]:
    """List unfinished trainings to run by other means, after recording the values of complete
    trials; see `tune`.

    The first `RANDOM_TRIALS` trials are listed together, since they don't depend on values. Later
    trials are listed one by one, since their settings depend on all earlier values.
    """
    store = TrialStore(plan, out)
    while True:
        waiting: list[Job] = []
        for trial in store.unfinished():
            jobs = store.jobs(trial)
            if all(RunFolder(job.folder).is_finished for job in jobs):
                store.tell(trial.number, _mean_value(plan, [Outcome(job) for job in jobs]))
            else:
                waiting += jobs
        if (waiting and len(store.chosen()) >= RANDOM_TRIALS) or not store.ask(trials):
            return waiting


def _train_next(
    store: TrialStore, console: Console, processes: int, executor: Executor | None
) -> bool:
    """Train the first trial that isn't in training elsewhere, and record the value; return False if
    there is none.
    """
    for trial in store.unfinished():
        folder = store.folder(trial)
        with ExitStack() as until_the_end:
            make_folder(folder)
            try:
                until_the_end.enter_context(lock_folder(folder, f"training trial {trial.number}"))
            except FolderLocked:
                continue
            if trial.number not in [each.number for each in store.unfinished()]:
                continue  # a different process ended the trial before this process locked it
            outcomes = run_all(
                store.jobs(trial),
                processes=processes,
                executor=executor,
                registry=store.plan.registry,
                console=console,
            )
            faults = dict.fromkeys(
                outcome.fault for outcome in outcomes if outcome.fault is not None
            )
            for fault in faults:
                say(console, fault)
            value = None if faults else _mean_value(store.plan, outcomes)
            store.tell(trial.number, value)
            settings = ", ".join(
                f"{key} = {format_value(each)}" for key, each in trial.params.items()
            )
            judged = "failed" if value is None else f"{store.plan.metric} {value:.4f}"
            say(console, f"trial {trial.number}: {settings}: {judged}")
            return True
    return False


def _mean_value(plan: SettingsSearch, outcomes: Sequence[Outcome]) -> float:
    """Return a trial's value, the mean over the folds."""
    return statistics.fmean(outcome.metrics()[plan.metric] for outcome in outcomes)


_SHOWN = 20  # trials on the page, while the JSON file lists all


def markdown(plan: SettingsSearch, trials: Sequence[Trial], recipe: str) -> str:
    """Format the budget and the best trials as a Markdown page."""
    winner = best_trial(trials)
    failed = sum(trial.value is None for trial in trials)
    folds = plan.folds or 1
    base = parse(plan.document, plan.registry)
    length = (
        f"{base.training.steps} steps"
        if base.training.steps
        else f"{base.training.epochs:g} epochs"
    )
    held = (
        f"the mean over {folds} class-disjoint folds of the training classes, each held out in turn"
        if plan.folds
        else "on the training classes that the recipe holds out"
    )
    keys = list(plan.space)
    lines = [
        f"# Settings of {recipe}, chosen on validation classes",
        "",
        (
            f"Budget: {len(trials)} trials ({failed} failed), {len(trials) * folds} trainings of "
            f"at most {length}, {sum(trial.seconds for trial in trials):.0f} s of processor time. "
            f"Optuna's TPE sampler, seed {plan.seed}, the first {min(RANDOM_TRIALS, len(trials))} "
            f"at random. Judged by {plan.metric}, {held}. The test classes were neither embedded "
            "nor measured."
        ),
        "",
        (
            f"Best is trial {winner.number}: the highest of {len(trials) - failed} noisy values, "
            "so biased upwards."
        ),
        "",
        f"| trial | {plan.metric} | {' | '.join(keys)} |",
        "|---" * (2 + len(keys)) + "|",
    ]
    for trial in sorted(trials, key=lambda t: (t.value is None, -(t.value or 0.0), t.number))[
        :_SHOWN
    ]:
        value = "failed" if trial.value is None else f"{trial.value:.4f}"
        cells = " | ".join(format_value(trial.settings[key]) for key in keys)
        lines.append(f"| {trial.number} | {value} | {cells} |")
    return "\n".join(lines) + "\n"


def write(plan: SettingsSearch, trials: Sequence[Trial], out: Path, recipe: str) -> list[Path]:
    """Write the page, the JSON file, and the recipe with the best settings to the search's
    folder.
    """
    page, data, chosen = out / "tuning.md", out / "tuning.json", out / "best.toml"
    text = markdown(plan, trials, recipe)
    toml = parse(plan.apply(best_trial(trials).settings), plan.registry).to_toml()
    about = {"metric": plan.metric, "selected_on": "validation", "best": best_trial(trials).number}
    write_json(data, {**plan.to_dict(), **about, "trials": [asdict(trial) for trial in trials]})
    write_text(chosen, toml)
    write_text(page, text)
    return [page, data, chosen]
