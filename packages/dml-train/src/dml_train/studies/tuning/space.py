"""The search space: ranges and choices, each for a recipe's key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import tomli_w

from dml_core import DmlError, InvalidOption

Scalar: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; integers if both are. With `log`, uniform in the logarithm.

    Raises:
        InvalidOption: if `low` isn't below `high`, or `log` is given and `low` isn't above 0.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidOption(
                f"the range is {self.low} to {self.high}; expected the first below the second"
            )
        if self.log and self.low <= 0:
            raise InvalidOption(f"the logarithmic range starts at {self.low}; expected a start above 0")

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def examples(self) -> Sequence[Scalar]:
        """Return values to check a recipe with: the ends."""
        return (self.low, self.high)

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `read_space` reads."""
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values.

    Raises:
        InvalidOption: if there are fewer than two, two are equal, or one isn't a number, string or boolean.
    """

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if len(set(map(repr, self.values))) < 2 or len(set(map(repr, self.values))) < len(self.values):
            raise InvalidOption(f"the choices are {list(self.values)}; expected at least two, all different")
        if odd := [value for value in self.values if not isinstance(value, Scalar)]:
            raise InvalidOption(f"a choice is {odd[0]!r}; expected a number, a string, true or false")

    def examples(self) -> Sequence[Scalar]:
        """Return values to check a recipe with: all."""
        return self.values

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `read_space` reads."""
        return {"choices": list(self.values)}


Space: TypeAlias = dict[str, Range | Choice]


def read_space(path: Path) -> Space:
    """Read a search space from TOML: a table for each key, with `low`, `high` and `log`, or with `choices`.

    Raises:
        DmlError: if the file can't be read, or a table has neither form.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DmlError(f"can't read the search space {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} is not TOML: {error}") from error
    return {key: _of_table(f"{path}: [{key!r}]", table) for key, table in document.items()}


def read_range(text: str) -> tuple[str, Range]:
    """Read ``KEY=LOW:HIGH`` or ``KEY=LOW:HIGH:log``.

    Raises:
        InvalidOption: if it has another form.
    """
    key, equals, bounds = text.partition("=")
    parts = bounds.split(":")
    try:
        if not (key and equals and (len(parts) == 2 or parts[2:] == ["log"])):
            raise ValueError
        low, high = (_number(part) for part in parts[:2])
    except ValueError:
        raise InvalidOption(
            f"range {text!r}: expected KEY=LOW:HIGH or KEY=LOW:HIGH:log, e.g. optimizer.lr=1e-4:1e-2:log"
        ) from None
    try:
        return key, Range(low, high, log=len(parts) == 3)
    except InvalidOption as error:
        raise InvalidOption(f"range {text!r}: {error}") from error


def read_choice(text: str) -> tuple[str, Choice]:
    """Read ``KEY=[A, B, …]``, with a list in TOML.

    Raises:
        InvalidOption: if it has another form.
    """
    key, _, values = text.partition("=")
    try:
        found = tomllib.loads(f"values = {values}")["values"]
    except tomllib.TOMLDecodeError:
        found = None
    if not key or not isinstance(found, list):
        raise InvalidOption(f"choice {text!r}: expected KEY=[A, B], e.g. sampler.images_per_class=[2, 4]")
    try:
        return key, Choice(tuple(found))
    except InvalidOption as error:
        raise InvalidOption(f"choice {text!r}: {error}") from error


def as_override(key: str, value: Scalar) -> str:
    """Return ``KEY=VALUE``, as `dml_train.recipe.loading.assign` takes it."""
    return f"{key}={tomli_w.dumps({'x': value}).partition('=')[2].strip()}"


def _of_table(where: str, table: object) -> Range | Choice:
    if isinstance(table, Mapping):
        try:
            if table.keys() == {"choices"} and isinstance(table["choices"], list):
                return Choice(tuple(table["choices"]))
            if {"low", "high"} <= table.keys() <= {"low", "high", "log"}:
                low, high, log = table["low"], table["high"], table.get("log", False)
                if _is_number(low) and _is_number(high) and isinstance(log, bool):
                    return Range(low, high, log)
        except InvalidOption as error:
            raise InvalidOption(f"{where}: {error}") from error
    raise InvalidOption(
        f"{where} is {table!r}; expected numbers low and high (and log = true), or a list choices"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)
