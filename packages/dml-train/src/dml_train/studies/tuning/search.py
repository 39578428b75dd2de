"""A seeded, resumable search for settings by Optuna, on validation classes only.

A trial is one choice of settings: a training for each fold; its value is the mean of a metric over the folds'
validation classes. A trial's settings are a function of the seed, its number and the values of earlier trials, so an
interrupted search ends as an uninterrupted one.
"""

from __future__ import annotations

import copy
import json
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_core import DmlError, Registry
from dml_train.files import WriteRefused, write_json
from dml_train.measure.evaluate import flatten_metrics
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import assign
from dml_train.recipe.tables import Recipe, differences
from dml_train.run_folder import RunFolder
from dml_train.seeds import derive
from dml_train.studies.runs import Job, Outcome, run_all
from dml_train.studies.tuning.journal import Journal
from dml_train.studies.tuning.space import Choice, Scalar, Space, as_override

_JOURNAL, _SEARCH = "journal.log", "search.json"
_STREAM = 0x74756E65  # of the trials' seeds, distinct from those of `dml_train.seeds`
RANDOM_TRIALS = 10  # at the beginning, before the sampler has values to learn from
# Optuna's defaults change between versions: 5.0 made `multivariate` and `constant_liar` true.
SAMPLER = {
    "n_startup_trials": RANDOM_TRIALS,
    "n_ei_candidates": 24,
    "multivariate": True,
    "group": False,
    "constant_liar": False,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of settings and its result.

    Args:
        number: from 0.
        settings: values by key.
        value: the mean of the metric over the folds; None if a training failed.
        seconds: processor time of its trainings.
    """

    number: int
    settings: dict[str, Scalar]
    value: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class SettingsSearch:
    """A search for settings of a recipe: its space, and the classes that judge a trial.

    Args:
        document: the recipe's resolved TOML document.
        space: the keys that vary.
        folds: the number of class-disjoint folds of the training classes, each held out in turn; None: the classes
            that the recipe itself holds out.
        seed: of the choices.
        registry: checks the recipes.

    Raises:
        DmlError: if the recipe holds out nothing, selects on the test split, or doesn't accept the space's values.
    """

    document: dict[str, Any]
    space: Space
    folds: int | None
    seed: int
    registry: Registry

    def __post_init__(self) -> None:
        if not self.space:
            raise DmlError(
                "there is nothing to search; give at least one range or choice", arguments=("space",)
            )
        base = parse(self.document, self.registry)
        if base.validation.on_test:
            raise DmlError(
                "the recipe has validation.on_test = true; a search selects settings on held-out training classes "
                "only. Remove it from the recipe, or set it to false"
            )
        if self.folds is None and not base.validation.holds_out:
            raise DmlError(
                "the recipe holds out no classes to evaluate settings on; "
                "set validation.class_fraction in it (e.g. 0.25), or give a number of folds (e.g. 4)",
                arguments=("folds",),
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
        """The metric that judges a trial."""
        name: str = self.document.get("validation", {}).get("metric", "map_at_r")
        return name

    def apply(self, settings: dict[str, Scalar]) -> dict[str, Any]:
        """Return a copy of the recipe's document with these settings."""
        document = copy.deepcopy(self.document)
        for key, value in settings.items():
            assign(document, as_override(key, value))
        return document

    def recipes(self, settings: dict[str, Scalar]) -> list[Recipe]:
        """Return a trial's recipes, one for each fold; none measures the test split."""
        document = self.apply(settings)
        evaluation = document.setdefault("evaluation", {})
        evaluation["test"] = False
        if not evaluation.get("every"):
            evaluation |= {"every": 1.0, "unit": "epoch"}
        if self.folds is None:
            return [parse(document, self.registry)]
        validation = document.setdefault("validation", {})
        validation.pop("class_fraction", None)
        recipes = []
        for fold in range(self.folds):
            validation |= {"fold": fold, "folds": self.folds}
            recipes.append(parse(document, self.registry))
        return recipes

    def to_dict(self) -> dict[str, Any]:
        """Return what identifies the search, in JSON's types."""
        return {
            "recipe": parse(self.document, self.registry).to_dict(),
            "space": {key: dimension.to_dict() for key, dimension in self.space.items()},
            "folds": self.folds,
            "seed": self.seed,
        }


def run_search(
    plan: SettingsSearch, out: Path, trials: int, *, console: Console, processes: int = 1
) -> list[Trial]:
    """Run trials until `out` has `trials` of them, and return all in order.

    Args:
        plan: the search.
        out: receives the journal and a folder for each trial's trainings. An existing search resumes.
        trials: the total number; those in `out` count.
        console: shows progress.
        processes: trainings at a time, of one trial.

    Raises:
        DmlError: if optuna isn't installed, `out` is another search's, or another process searches in it.
        StudyInterrupted: as `run_all`.
    """
    optuna = _optuna()
    _begin(plan, out, optuna.__version__, console)
    with RunFolder(out).lock():
        study = optuna.create_study(
            study_name="search",
            storage=optuna.storages.JournalStorage(Journal(out / _JOURNAL)),
            direction="maximize",
            load_if_exists=True,
        )
        distributions = {key: _distribution(optuna, dimension) for key, dimension in plan.space.items()}
        while True:
            known = study.get_trials(deepcopy=False)
            # A trial interrupted while its settings were chosen has trained nothing; another replaces it.
            for torn in (
                t for t in known if not t.state.is_finished() and t.params.keys() != plan.space.keys()
            ):
                study.tell(torn.number, state=optuna.trial.TrialState.FAIL)
            chosen = [t for t in known if t.params.keys() == plan.space.keys()]
            started = [t for t in chosen if not t.state.is_finished()]
            if not started and len(chosen) >= trials:
                break
            if started:
                number, settings = started[0].number, dict(started[0].params)
            else:
                seed = derive(plan.seed, _STREAM, len(known)) >> 32  # numpy's legacy generators take 32 bits
                with warnings.catch_warnings():  # `multivariate` was an experiment before 5.0
                    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                    study.sampler = optuna.samplers.TPESampler(seed=seed, **SAMPLER)
                asked = study.ask(distributions)
                number, settings = asked.number, dict(asked.params)
            value = _train(plan, settings, _folder(out, number), console, processes)
            console.print(
                f"trial {number}: {format_settings(settings)}: "
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


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the first trial with the highest value.

    Raises:
        DmlError: if every trial failed.
    """
    finished = [trial for trial in trials if trial.value is not None]
    if not finished:
        raise DmlError(f"all {len(trials)} trials failed; their errors are printed above")
    return max(finished, key=lambda trial: (trial.value, -trial.number))


def _train(
    plan: SettingsSearch, settings: dict[str, Scalar], folder: Path, console: Console, processes: int
) -> float | None:
    """Train a trial and return the mean over its folds; if a training fails, print the errors and return None."""
    outcomes = run_all(
        _jobs(plan, settings, folder), processes=processes, registry=plan.registry, console=console
    )
    if faults := [outcome.fault for outcome in outcomes if outcome.fault is not None]:
        for fault in dict.fromkeys(faults):
            console.print(fault, markup=False, highlight=False, soft_wrap=True)
        return None
    return statistics.fmean(flatten_metrics(outcome.metrics())[plan.metric] for outcome in outcomes)


def _jobs(plan: SettingsSearch, settings: dict[str, Scalar], folder: Path) -> list[Job]:
    return [
        Job(f"{folder.name}, fold {fold}", recipe, folder / f"fold-{fold}")
        for fold, recipe in enumerate(plan.recipes(settings))
    ]


def _seconds(plan: SettingsSearch, settings: dict[str, Scalar], folder: Path) -> float:
    return sum(Outcome(job).seconds() or 0.0 for job in _jobs(plan, settings, folder))


def _folder(out: Path, number: int) -> Path:
    return out / "trials" / f"{number:04d}"


def _begin(plan: SettingsSearch, out: Path, version: str, console: Console) -> None:
    """Create the search's folder, or check that an existing one is of the same search.

    Another version of Optuna may resume a search; its trials may then differ, which is said.
    """
    path = out / _SEARCH
    mine = {**plan.to_dict(), "sampler": {"name": "TPESampler", **SAMPLER}, "optuna": version}
    if path.is_file():
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            found = differences(saved, {**mine, "optuna": saved.get("optuna")})
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DmlError(f"{path} is corrupt: {error}") from error
        if found:
            raise DmlError(
                f"{out} holds a different search:\n  " + "\n  ".join(found) + "\nChoose another folder",
                arguments=("out",),
            )
        if saved["optuna"] != version:
            console.print(
                f"optuna {saved['optuna']} began this search, and {version} resumes it: its choices may differ",
                markup=False,
                highlight=False,
            )
        return
    try:
        # A search killed before this file was complete has nothing to resume, and nothing to lose.
        if out.is_dir() and [entry for entry in out.iterdir() if entry.name != f".{_SEARCH}.partial"]:
            raise DmlError(
                f"{out} holds other files; nothing was touched. Choose another folder", arguments=("out",)
            )
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteRefused(f"can't make the folder {out}: {error.strerror}") from error
    write_json(path, mine)


def _distribution(optuna: Any, dimension: Any) -> Any:
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    kind = (
        optuna.distributions.IntDistribution
        if dimension.is_integer
        else optuna.distributions.FloatDistribution
    )
    return kind(dimension.low, dimension.high, log=dimension.log)


def format_settings(settings: dict[str, Scalar]) -> str:
    """Format settings on one line: ``optimizer.lr = 0.001, loss.scale = 8``."""
    return ", ".join(f"{key} = {format_value(value)}" for key, value in settings.items())


def format_value(value: Scalar) -> str:
    """Format a value, floats to four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise DmlError("dml tune needs optuna: pip install 'dml-train[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
