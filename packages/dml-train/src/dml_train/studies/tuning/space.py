"""The search space: ranges and choices, each for a recipe's key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
        if len(self.values) < 2 or len(set(map(repr, self.values))) < len(self.values):
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
    space: Space = {}
    for key, table in document.items():
        with _named(f"{path}: [{key!r}]"):
            space[key] = _of_table(table)
    return space


def read_range(text: str) -> tuple[str, Range]:
    """Read ``KEY=LOW:HIGH`` or ``KEY=LOW:HIGH:log``; raise InvalidOption if it has another form."""
    with _named(f"range {text!r}"):
        try:
            key, low, high, log = re.fullmatch(r"([^=]+)=([^:]+):([^:]+)(:log)?", text).groups()  # type: ignore[union-attr]
            ends = _number(low), _number(high)
        except (AttributeError, ValueError):
            raise InvalidOption(
                "expected KEY=LOW:HIGH or KEY=LOW:HIGH:log, e.g. optimizer.lr=1e-4:1e-2:log"
            ) from None
        return key, Range(*ends, log=log is not None)


def read_choice(text: str) -> tuple[str, Choice]:
    """Read ``KEY=[A, B, …]``, with a list in TOML; raise InvalidOption if it has another form."""
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
    """Prefix an error with what was read."""
    try:
        yield
    except InvalidOption as error:
        raise InvalidOption(f"{what}: {error}") from error


def _of_table(table: object) -> Range | Choice:
    match table:
        case {"choices": list(values), **others} if not others:
            return Choice(tuple(values))
        case {"low": int() | float() as low, "high": int() | float() as high, **others} if others.keys() <= {
            "log"
        } and {type(low), type(high)} <= {int, float}:
            return Range(low, high, log=others.get("log") is True)
    raise InvalidOption(f"{table!r}; expected numbers low and high (and log = true), or a list choices")


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)
