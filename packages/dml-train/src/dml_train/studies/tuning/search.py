"""A search for settings on validation classes only: the space, and the recipes of the trials.

A trial chooses settings, and trains a run per fold; the value is the mean of a metric on the folds'
validation classes.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dml_core import DmlError, InvalidOption, Registry
from dml_train.recipe.checking import parse
from dml_train.recipe.loading import set_value
from dml_train.recipe.tables import Recipe, Validation

Scalar: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high` inclusive, or integers if both are; with `log`, uniform in the
    logarithm.

    Raise InvalidOption if `low` isn't below `high`, or isn't above 0 with `log`.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidOption(
                f"the range is {self.low} to {self.high}; expected the lower end first"
            )
        if self.log and self.low <= 0:
            raise InvalidOption(
                f"the logarithmic range starts at {self.low}; expected a start above 0"
            )

    @property
    def is_integer(self) -> bool:
        """Whether all values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `read_space` reads."""
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice from two or more different numbers, strings or booleans; raise InvalidOption for
    other values.
    """

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(set(map(repr, self.values))) < len(self.values):
            raise InvalidOption(
                f"the choices are {list(self.values)}; expected at least two, all different"
            )
        if odd := [value for value in self.values if not isinstance(value, Scalar)]:
            raise InvalidOption(
                f"a choice is {odd[0]!r}; expected a number, a string, true or false"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `read_space` reads."""
        return {"choices": list(self.values)}


Space: TypeAlias = dict[str, Range | Choice]


def read_space(path: Path) -> Space:
    """Read a search space from TOML: a table per key, either with `low`, `high` and `log`, or with
    `choices`.

    Raise DmlError if the file can't be read, or the form of a table is different.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DmlError(f"can't read the search space {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} is not TOML: {error}") from error
    space: Space = {}
    for key, table in document.items():
        with _named(f"{path}: [{key!r}]"):
            space[key] = _parse_table(table)
    return space


def read_range(text: str) -> tuple[str, Range]:
    """Read ``KEY=LOW:HIGH`` or ``KEY=LOW:HIGH:log``; raise InvalidOption for any other text."""
    with _named(f"range {text!r}"):
        try:
            key, low, high, log = re.fullmatch(r"([^=]+)=([^:]+):([^:]+)(:log)?", text).groups()  # type: ignore[union-attr]
            ends = _number(low), _number(high)
        except (AttributeError, ValueError):
            example = "optimizer.lr=1e-4:1e-2:log"
            raise InvalidOption(
                f"expected KEY=LOW:HIGH or KEY=LOW:HIGH:log, e.g. {example}"
            ) from None
        return key, Range(*ends, log=log is not None)


def read_choice(text: str) -> tuple[str, Choice]:
    """Read ``KEY=[A, B, …]``, where the list is TOML; raise InvalidOption for any other text."""
    key, _, values = text.partition("=")
    with _named(f"choice {text!r}"):
        try:
            found = tomllib.loads(f"values = {values}")["values"]
        except tomllib.TOMLDecodeError:
            found = None
        if not key or not isinstance(found, list):
            raise InvalidOption("expected KEY=[A, B], e.g. sampler.images_per_class=[2, 4]")
        return key, Choice(tuple(found))


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Prefix error messages with the file or option."""
    try:
        yield
    except InvalidOption as error:
        raise InvalidOption(f"{what}: {error}") from error


def _parse_table(table: object) -> Range | Choice:
    match table:
        case {"choices": list(values), **others} if not others:
            return Choice(tuple(values))
        case {"low": int() | float() as low, "high": int() | float() as high, **others} if (
            others.keys() <= {"log"} and {type(low), type(high)} <= {int, float}
        ):
            return Range(low, high, log=others.get("log") is True)
    raise InvalidOption(
        f"{table!r}; expected numbers low and high (and log = true), or a list choices"
    )


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


@dataclass(frozen=True, slots=True)
class Trial:
    """A choice of settings and the result."""

    number: int  # trials are counted from 0
    settings: dict[str, Scalar]  # values by key
    value: float | None  # the mean of the metric over the folds; None if a training failed
    seconds: float  # processor time of the trainings


@dataclass(frozen=True, slots=True)
class SettingsSearch:
    """A search for settings of a recipe; see `tune` for the fields.

    Raise DmlError if the recipe doesn't hold out classes, selects on the test split, or rejects
    values of the space.
    """

    document: dict[str, Any]  # the resolved recipe
    space: Space
    folds: int | None
    seed: int
    registry: Registry

    def __post_init__(self) -> None:
        if not self.space:
            raise DmlError(
                "the search space is empty; give a range or choice", arguments=("space",)
            )
        base = parse(self.document, self.registry)
        if base.validation.on_test:
            raise DmlError(
                "validation.on_test is true in the recipe; a search selects settings on held-out "
                "training classes only. Remove it from the recipe, or set it to false"
            )
        if self.folds is None and not base.validation.holds_out:
            raise DmlError(
                "the recipe doesn't hold out classes to evaluate settings on; "
                "set validation.class_fraction (e.g. 0.25), or give a number of folds (e.g. 4)",
                arguments=("folds",),
            )
        examples = {
            key: (d.low, d.high) if isinstance(d, Range) else d.values
            for key, d in self.space.items()
        }
        first = {key: values[0] for key, values in examples.items()}
        for key, values in examples.items():
            for value in values:
                try:
                    self.recipes({**first, key: value})
                except DmlError as error:
                    raise type(error)(f"with {key} = {value!r}: {error}") from error

    @property
    def metric(self) -> str:
        """The metric to maximize."""
        name: str = self.document.get("validation", {}).get("metric", Validation().metric)
        return name

    def apply(self, settings: Mapping[str, Scalar]) -> dict[str, Any]:
        """Return a copy of the recipe with these settings."""
        document = copy.deepcopy(self.document)
        for key, value in settings.items():
            set_value(document, key, value)
        return document

    def recipes(self, settings: Mapping[str, Scalar]) -> list[Recipe]:
        """Return a trial's recipes, one per fold; the test split isn't evaluated."""
        document = self.apply(settings)
        evaluation = document.setdefault("evaluation", {})
        evaluation["test"] = False
        if not evaluation.get("every"):
            evaluation |= {"every": 1.0, "unit": "epoch"}
        if self.folds is None:
            return [parse(document, self.registry)]
        validation = document.setdefault("validation", {})
        validation.pop("class_fraction", None)
        folds = [{**validation, "fold": fold, "folds": self.folds} for fold in range(self.folds)]
        return [parse({**document, "validation": each}, self.registry) for each in folds]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that identify the search, in JSON's types."""
        return {
            "recipe": parse(self.document, self.registry).to_dict(),
            "space": {key: dimension.to_dict() for key, dimension in self.space.items()},
            "folds": self.folds,
            "seed": self.seed,
        }


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the first trial with the highest value; raise DmlError if all trials failed."""
    finished = [trial for trial in trials if trial.value is not None]
    if not finished:
        raise DmlError(f"all {len(trials)} trials failed; their errors are printed above")
    return max(finished, key=lambda trial: (trial.value, -trial.number))


def format_value(value: Scalar) -> str:
    """Format a value, floats to four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
