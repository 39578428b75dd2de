"""A seeded, resumable search for settings by Optuna, that sees validation classes only.

A trial is one choice of settings: a training for each fold, its value the mean of a metric over the folds' validation
classes. What a trial tries is a function of the seed, its number and the values of the trials before it, so a search
that was stopped anywhere ends as one that never was.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.files import write_json
from dml_train.measure.evaluate import flatten_metrics
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import assign
from dml_train.recipe.tables import Recipe, differences
from dml_train.run_folder import RunFolder
from dml_train.seeds import derive
from dml_train.studies.runs import Job, Outcome, run_all
from dml_train.studies.tuning.space import Choice, Scalar, Space, as_assignment

_JOURNAL, _SEARCH = "journal.log", "search.json"
_STREAM = 0x74756E65  # of the seeds of trials, apart from those of `dml_train.seeds`
RANDOM_TRIALS = 10  # at the beginning, before the sampler has values to go by


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of settings and what it came to.

    Args:
        number: from 0.
        settings: the values by key.
        value: the mean of the metric over the folds; None if a training failed.
        seconds: processor time of its trainings.
    """

    number: int
    settings: dict[str, Scalar]
    value: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched: settings of which recipe, judged how.

    Args:
        document: the recipe's TOML document.
        space: what may vary.
        folds: into how many class-disjoint folds the training classes are cut, all of them tried in turn; None: the
            classes that the recipe itself holds out.
        seed: of the choices.

    Raises:
        DmlError: if the recipe holds out nothing, lets the test split choose, or doesn't take the space's values.
    """

    document: dict[str, Any]
    space: Space
    folds: int | None
    seed: int
    registry: Registry

    def __post_init__(self) -> None:
        if not self.space:
            raise DmlError("there is nothing to search; give at least one --range, --choice or --space")
        base = parse(self.document, self.registry)
        if base.validation.on_test:
            raise DmlError(
                "the recipe says validation.on_test = true; a search lets only held-out training classes choose"
            )
        if self.folds is None and not base.validation.holds_out:
            raise DmlError(
                "the recipe holds out no classes by which settings could be judged; "
                "give --folds 4, or --set validation.class_fraction=0.25"
            )
        first = {key: dimension.examples()[0] for key, dimension in self.space.items()}
        for key, dimension in self.space.items():
            for value in dimension.examples():
                try:
                    self.recipes({**first, key: value})
                except DmlError as error:
                    raise type(error)(f"with {key} = {value!r}: {error}") from error

    @property
    def metric(self) -> str:
        """What a trial is judged by."""
        name: str = self.document.get("validation", {}).get("metric", "map_at_r")
        return name

    def changed(self, settings: dict[str, Scalar]) -> dict[str, Any]:
        """The recipe's document with these settings."""
        document = copy.deepcopy(self.document)
        for key, value in settings.items():
            assign(document, as_assignment(key, value))
        return document

    def recipes(self, settings: dict[str, Scalar]) -> list[Recipe]:
        """The recipes that a trial trains by, none of which measures the test split."""
        document = self.changed(settings)
        evaluation = document.setdefault("evaluation", {})
        evaluation["test"] = False
        if not evaluation.get("every"):
            evaluation |= {"every": 1.0, "unit": "epoch"}
        if self.folds is None:
            return [parse(document, self.registry)]
        validation = document.setdefault("validation", {})
        validation.pop("class_fraction", None)
        found = []
        for fold in range(self.folds):
            validation |= {"fold": fold, "folds": self.folds}
            found.append(parse(document, self.registry))
        return found

    def to_dict(self) -> dict[str, Any]:
        """What makes it this search and no other, in JSON's types."""
        return {
            "recipe": parse(self.document, self.registry).to_dict(),
            "space": {key: dimension.to_dict() for key, dimension in self.space.items()},
            "folds": self.folds,
            "seed": self.seed,
        }


def run_search(plan: Search, out: Path, trials: int, *, console: Console, processes: int = 1) -> list[Trial]:
    """Try settings until there are so many trials, and give all of them, in their order.

    Args:
        plan: what is searched.
        out: the journal, and a folder for each trial's trainings. What is there is gone on with.
        trials: how many in all; those in `out` count.
        console: where progress is shown.
        processes: trainings at a time, of one trial.

    Raises:
        DmlError: if optuna isn't installed, `out` is another search's, or another process searches in it.
        Stopped: as `run_all`.
    """
    optuna = _optuna()
    _begin(plan, out)
    with RunFolder(out).lock():
        journal = optuna.storages.journal.JournalFileBackend(str(out / _JOURNAL))
        study = optuna.create_study(
            study_name="search",
            storage=optuna.storages.JournalStorage(journal),
            direction="maximize",
            load_if_exists=True,
        )
        distributions = {key: _distribution(optuna, dimension) for key, dimension in plan.space.items()}
        while True:
            known = study.get_trials(deepcopy=False)
            # A trial whose choice was cut off halfway has trained nothing; another takes its place.
            for torn in (
                t for t in known if not t.state.is_finished() and t.params.keys() != plan.space.keys()
            ):
                study.tell(torn.number, state=optuna.trial.TrialState.FAIL)
            whole = [t for t in known if t.params.keys() == plan.space.keys()]
            begun = [t for t in whole if not t.state.is_finished()]
            if not begun and len(whole) >= trials:
                break
            if begun:
                number, settings = begun[0].number, dict(begun[0].params)
            else:
                seed = derive(plan.seed, _STREAM, len(known)) >> 32  # numpy's old generators take 32 bits
                study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
                asked = study.ask(distributions)
                number, settings = asked.number, dict(asked.params)
            value = _train(plan, settings, _folder(out, number), console, processes)
            console.print(
                f"trial {number}: {_words(settings)}: "
                + ("failed" if value is None else f"{plan.metric} {value:.4f}"),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            if value is None:
                study.tell(number, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(number, value)
        return [
            Trial(t.number, dict(t.params), t.value, _seconds(plan, dict(t.params), _folder(out, t.number)))
            for t in study.get_trials(deepcopy=False)
            if t.params.keys() == plan.space.keys()
        ]


def best(trials: Sequence[Trial]) -> Trial:
    """The first of those with the highest value.

    Raises:
        DmlError: if every trial failed.
    """
    finished = [trial for trial in trials if trial.value is not None]
    if not finished:
        raise DmlError(f"all {len(trials)} trials failed; what each said stands above")
    return max(finished, key=lambda trial: (trial.value, -trial.number))


def _train(
    plan: Search, settings: dict[str, Scalar], folder: Path, console: Console, processes: int
) -> float | None:
    """The trial's value: the mean over its folds. None, with the reasons printed, if a training failed."""
    outcomes = run_all(
        _jobs(plan, settings, folder), processes=processes, registry=plan.registry, console=console
    )
    if faults := [outcome.fault for outcome in outcomes if outcome.fault is not None]:
        for fault in dict.fromkeys(faults):
            console.print(fault, markup=False, highlight=False, soft_wrap=True)
        return None
    return statistics.fmean(flatten_metrics(outcome.metrics())[plan.metric] for outcome in outcomes)


def _jobs(plan: Search, settings: dict[str, Scalar], folder: Path) -> list[Job]:
    return [
        Job(f"{folder.name}, fold {fold}", recipe, folder / f"fold-{fold}")
        for fold, recipe in enumerate(plan.recipes(settings))
    ]


def _seconds(plan: Search, settings: dict[str, Scalar], folder: Path) -> float:
    return sum(Outcome(job).seconds() or 0.0 for job in _jobs(plan, settings, folder))


def _folder(out: Path, number: int) -> Path:
    return out / "trials" / f"{number:04d}"


def _begin(plan: Search, out: Path) -> None:
    """Make the folder this search's, or see that it is."""
    path = out / _SEARCH
    mine = plan.to_dict()
    if path.is_file():
        try:
            found = differences(json.loads(path.read_text(encoding="utf-8")), mine)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DmlError(f"{path} is damaged: {error}") from error
        if found:
            raise DmlError(
                f"the search in {out} is another one:\n  "
                + "\n  ".join(found)
                + "\nChoose another folder with --out"
            )
        return
    try:
        # A search killed before this file was whole has nothing to go on with, and nothing to lose.
        if out.is_dir() and [entry for entry in out.iterdir() if entry.name != f".{_SEARCH}.partial"]:
            raise DmlError(f"{out} holds something else already; nothing was touched. Choose another --out")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DmlError(f"can't make the folder {out}: {error.strerror}") from error
    write_json(path, mine)


def _distribution(optuna: Any, dimension: Any) -> Any:
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    kind = optuna.distributions.IntDistribution if dimension.whole else optuna.distributions.FloatDistribution
    return kind(dimension.low, dimension.high, log=dimension.log)


def _words(settings: dict[str, Scalar]) -> str:
    return ", ".join(f"{key} = {written(value)}" for key, value in settings.items())


def written(value: Scalar) -> str:
    """A value for people: fractions to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise DmlError("the search needs optuna: pip install 'dml-train[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
