"""Schedules: numbers that move during a run, as pure functions of the position in it.

A schedule has no state, so a resumed run has nothing to restore. `Schedules` binds schedules to attributes by
path (``"loss.alpha"``, ``"optimizer.lr"``); heating-up and a dynamic temperature are no special cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Protocol

from dml_core.errors import DmlError, InvalidOption, nearest


class Schedule(Protocol):
    """A value for each position in the run."""

    def __call__(self, position: float) -> float:
        """The value at a position, counted from 0 in the schedule's unit."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """`value`, throughout.

    Args:
        value: any number.
    """

    value: float

    def __call__(self, position: float) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Linear:
    """From `start` at `begin` in a straight line to `end`, `length` later; level before and after.

    Args:
        start, end: any numbers.
        length: above 0, in the unit of the position.
        begin: likewise, of any sign.

    Raises:
        ValueError: if `length` isn't positive.
    """

    start: float
    end: float
    length: float
    begin: float = 0.0

    def __post_init__(self) -> None:
        _require_positive(length=self.length)

    def __call__(self, position: float) -> float:
        """``start + (end - start) · clip((position - begin) / length, 0, 1)``, and exactly `end` at the end."""
        fraction = _clipped((position - self.begin) / self.length)
        return self.start * (1.0 - fraction) + self.end * fraction


@dataclass(frozen=True, slots=True)
class Cosine:
    """From `start` at `begin` along half a cosine to `end`, `length` later; level before and after.

    Source: Loshchilov & Hutter 2017, SGDR, Eq. 5, without restarts.

    Args:
        start, end: any numbers.
        length: above 0, in the unit of the position.
        begin: likewise, of any sign.

    Raises:
        ValueError: if `length` isn't positive.
    """

    start: float
    end: float
    length: float
    begin: float = 0.0

    def __post_init__(self) -> None:
        _require_positive(length=self.length)

    def __call__(self, position: float) -> float:
        """``start · w + end · (1 - w)`` with ``w = (1 + cos(π · fraction)) / 2``; exact at both ends."""
        fraction = _clipped((position - self.begin) / self.length)
        weight = (1.0 + math.cos(math.pi * fraction)) / 2.0
        return self.start * weight + self.end * (1.0 - weight)


@dataclass(frozen=True, slots=True)
class Step:
    """``values[0]`` until ``milestones[0]``, then ``values[1]`` until ``milestones[1]``, …

    A milestone belongs to what follows it.

    Args:
        values: any numbers, one more than milestones.
        milestones: rising, in the unit of the position; there may be none.

    Raises:
        ValueError: if there isn't one value more than milestones, or the milestones don't rise.
    """

    values: Sequence[float]
    milestones: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.milestones) + 1:
            raise ValueError(
                f"{len(self.values)} values for {len(self.milestones)} milestones; expected one value more"
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones are {list(self.milestones)}; expected them to rise")

    def __call__(self, position: float) -> float:
        """The value of the stretch that the position is in."""
        return self.values[sum(position >= milestone for milestone in self.milestones)]


@dataclass(frozen=True, slots=True)
class Warmup:
    """`then`, multiplied by a factor that rises in a straight line to 1 over the first `length`.

    The factor at position p is ``(p + 1) / length``, so that the first step is not lost to a zero.

    Args:
        then: what is warmed up to. Its positions count from the same 0.
        length: above 0, in steps.

    Raises:
        ValueError: if `length` isn't positive.
    """

    then: Schedule
    length: float

    def __post_init__(self) -> None:
        _require_positive(length=self.length)

    def __call__(self, position: float) -> float:
        """``then(position) · min(1, (position + 1) / length)``."""
        return self.then(position) * min(1.0, (position + 1.0) / self.length)


@dataclass(frozen=True, slots=True)
class InUnits:
    """`then`, whose positions count units of so many steps: epochs, or whole runs.

    Args:
        then: what takes a position in that unit.
        steps_per_unit: above 0.
    """

    then: Schedule
    steps_per_unit: float

    def __call__(self, position: float) -> float:
        """``then(position / steps_per_unit)``."""
        return self.then(position / self.steps_per_unit)


_BY_KIND: dict[str, type[Constant | Linear | Cosine | Step]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "step": Step,
}


def schedule_from_table(table: Mapping[str, Any], *, num_steps: int, steps_per_epoch: int) -> Schedule:
    """The schedule that a recipe's table describes, as a function of the step.

    Args:
        table: ``kind`` (``"constant"``, ``"linear"``, ``"cosine"``, ``"step"``) and that schedule's arguments;
            ``unit`` (``"step"``, the default, ``"epoch"`` or ``"run"``) in which all its positions count; and
            ``warmup``, in steps. The `length` of a line or cosine defaults to the rest of the run.
        num_steps: of the whole run.
        steps_per_epoch: steps an epoch.

    Raises:
        InvalidOption: an unknown kind, unit or key, a missing key, a value that the schedule refuses.
    """
    options = dict(table)
    kind = options.pop("kind", "")
    if kind not in _BY_KIND:
        raise InvalidOption(
            f"schedule kind is {kind!r}{nearest(str(kind), _BY_KIND)} kinds: {', '.join(_BY_KIND)}"
        )
    units = {"step": 1, "epoch": steps_per_epoch, "run": num_steps}
    unit = options.pop("unit", "step")
    if unit not in units:
        raise InvalidOption(f"schedule unit is {unit!r}{nearest(str(unit), units)} units: {', '.join(units)}")
    warmup = options.pop("warmup", 0)

    accepted = {field.name: field for field in fields(_BY_KIND[kind])}
    for key, value in options.items():
        if key not in accepted:
            raise InvalidOption(
                f"a {kind} schedule has no key {key!r}{nearest(key, accepted)} "
                f"keys: {', '.join([*accepted, 'unit', 'warmup'])}"
            )
        numbers = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, list | tuple) != (kind == "step") or not all(_is_number(n) for n in numbers):
            expected = "a list of numbers" if kind == "step" else "a number"
            raise InvalidOption(f"{key} of a {kind} schedule is {value!r}; expected {expected}")
    if "length" in accepted:
        options.setdefault("length", num_steps / units[unit] - options.get("begin", 0.0))
    missing = [name for name, f in accepted.items() if name not in options and f.default is MISSING]
    if missing:
        raise InvalidOption(f"a {kind} schedule needs {', '.join(map(repr, missing))}")
    if not _is_number(warmup) or warmup < 0:
        raise InvalidOption(f"warmup of a schedule is {warmup!r}; expected a number of steps, at least 0")
    try:
        schedule: Schedule = _BY_KIND[kind](**options)
    except ValueError as error:
        raise InvalidOption(f"{kind} schedule: {error}") from error
    if unit != "step":
        schedule = InUnits(schedule, units[unit])
    return Warmup(schedule, warmup) if warmup else schedule


class Schedules:
    """Schedules bound to the attributes that they move.

    Args:
        schedules: schedules by path. A path is the name of a root, then attributes, joined by dots:
            ``"loss.alpha"``, ``"optimizer.lr"``, ``"loss.loss.scale"`` inside a wrapper.
        roots: the objects that paths start from, by name.

    Raises:
        DmlError: if a path doesn't lead to a number, naming the nearest one that does.
    """

    def __init__(self, schedules: Mapping[str, Schedule], roots: Mapping[str, object]) -> None:
        self._schedules = dict(schedules)
        self._targets = {path: _target(roots, path) for path in schedules}
        # Decided once: a schedule that gives an int must not turn a float attribute into one for good.
        self._whole = {
            path for path, (owner, name) in self._targets.items() if isinstance(getattr(owner, name), int)
        }

    def apply(self, position: float) -> dict[str, float]:
        """Set every attribute to its value at this position, and say what was set, by path.

        Args:
            position: in steps, from 0.

        Returns:
            What was set. An attribute that held an int when it was bound gets the nearest int.
        """
        values: dict[str, float] = {}
        for path, schedule in self._schedules.items():
            owner, name = self._targets[path]
            value = schedule(position)
            value = round(value) if path in self._whole else float(value)
            setattr(owner, name, value)
            values[path] = value
        return values


def _target(roots: Mapping[str, object], path: str) -> tuple[object, str]:
    """The object and the name of its attribute that a path leads to."""
    first, *attributes = path.split(".")
    if first not in roots or not attributes:
        raise DmlError(
            f"schedule {path!r}: expected ROOT.ATTRIBUTE{nearest(first, roots)} roots: {', '.join(roots)}"
        )
    owner, name = roots[first], attributes[-1]
    for attribute in attributes[:-1]:
        if not hasattr(owner, attribute):
            raise DmlError(
                f"schedule {path!r}: {type(owner).__name__} has no {attribute!r}{nearest(attribute, dir(owner))}"
            )
        owner = getattr(owner, attribute)
    numbers = [known for known in dir(owner) if known[0] != "_" and _is_number(getattr(owner, known, None))]
    if name not in numbers:
        raise DmlError(
            f"schedule {path!r}: {type(owner).__name__} has no number {name!r}{nearest(name, numbers)} "
            f"numbers: {', '.join(numbers) or 'none'}"
        )
    return owner, name


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _clipped(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))


def _require_positive(**named: float) -> None:
    ((name, value),) = named.items()
    if not value > 0:
        raise ValueError(f"{name} is {value}; expected more than 0")
