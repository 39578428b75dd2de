"""A search for settings on validation classes only: its space, its recipes, its trials.

A trial is one choice of settings: a training for each fold; its value is the mean of a metric over the folds'
validation classes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dml_core import DmlError, Registry
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import set_value
from dml_train.recipe.tables import Recipe, Validation
from dml_train.studies.tuning.space import Scalar, Space


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of settings and its result."""

    number: int  # from 0
    settings: dict[str, Scalar]  # values by key
    value: float | None  # the mean of the metric over the folds; None if a training failed
    seconds: float  # processor time of its trainings


@dataclass(frozen=True, slots=True)
class SettingsSearch:
    """A search for settings of a recipe: its space, and the classes that judge a trial.

    Raises:
        DmlError: if the recipe holds out nothing, selects on the test split, or doesn't accept the space's values.
    """

    document: dict[str, Any]  # the recipe's, resolved
    space: Space
    folds: (
        int | None
    )  # class-disjoint parts of the training classes, each held out in turn; None: as in the recipe
    seed: int  # of the choices
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
        name: str = self.document.get("validation", {}).get("metric", Validation().metric)
        return name

    def apply(self, settings: Mapping[str, Scalar]) -> dict[str, Any]:
        """Return a copy of the recipe's document with these settings."""
        document = copy.deepcopy(self.document)
        for key, value in settings.items():
            set_value(document, key, value)
        return document

    def recipes(self, settings: Mapping[str, Scalar]) -> list[Recipe]:
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


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the first trial with the highest value; raise DmlError if every trial failed."""
    finished = [trial for trial in trials if trial.value is not None]
    if not finished:
        raise DmlError(f"all {len(trials)} trials failed; their errors are printed above")
    return max(finished, key=lambda trial: (trial.value, -trial.number))


def format_value(value: Scalar) -> str:
    """Format a value, floats to four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
