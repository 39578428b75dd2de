"""Schedules: numbers that change during a run, depending only on the position in the run.

A schedule is stateless, so it need not be restored on resuming. Use `Schedules` to bind schedules
to attributes by path (``"loss.alpha"``, ``"optimizer.lr"``), for example to change a temperature
during training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias

from dml_core.errors import DmlError, InvalidOption, nearest

# A function from the position in the run, counted from 0 in the schedule's unit, to a value.
Schedule: TypeAlias = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Constant:
    """The constant `value`."""

    value: float

    def __call__(self, position: float) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line from `start` at `begin` to `end` at ``begin + length``, constant before and
    after.

    Args:
        start, end: any numbers; both are reached exactly.
        length: above 0, in the unit of the position.
        begin: in the unit of the position; can be negative. Default: 0.

    Raises:
        ValueError: if `length` isn't positive.
    """

    start: float
    end: float
    length: float
    begin: float = 0.0

    def __post_init__(self) -> None:
        if not self.length > 0:
            raise ValueError(f"length is {self.length}; expected a number above 0")

    def __call__(self, position: float) -> float:
        """Return ``start · (1 - f) + end · f`` with
        ``f = clip((position - begin) / length, 0, 1)``.
        """
        fraction = min(1.0, max(0.0, (position - self.begin) / self.length))
        of_start, of_end = self._weights(fraction)
        return self.start * of_start + self.end * of_end

    def _weights(self, fraction: float) -> tuple[float, float]:
        return 1.0 - fraction, fraction


class Cosine(Linear):
    """Half a cosine instead of the straight line: ``start · w + end · (1 - w)``,
    ``w = (1 + cos(π · f)) / 2``.

    Source: Loshchilov & Hutter 2017, SGDR, Eq. 5, without restarts.
    """

    def _weights(self, fraction: float) -> tuple[float, float]:
        of_start = (1.0 + math.cos(math.pi * fraction)) / 2.0
        return of_start, 1.0 - of_start


@dataclass(frozen=True, slots=True)
class Step:
    """A step function: ``values[0]`` until ``milestones[0]``, then ``values[1]`` until
    ``milestones[1]``, …

    When a milestone is reached, the next value is used.

    Args:
        values: any numbers, 1 more than there are milestones.
        milestones: strictly increasing, in the unit of the position; can be empty.

    Raises:
        ValueError: if the number of values isn't the number of milestones plus 1, or the milestones
            don't increase.
    """

    values: Sequence[float]
    milestones: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.milestones) + 1:
            raise ValueError(
                f"{len(self.values)} values for {len(self.milestones)} milestones; expected "
                f"{len(self.milestones) + 1} values"
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones are {list(self.milestones)}; expected increasing numbers")

    def __call__(self, position: float) -> float:
        """Return the value of the interval that contains the position."""
        return self.values[sum(position >= milestone for milestone in self.milestones)]


_BY_KIND: dict[str, type[Constant | Linear | Step]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "step": Step,
}


def schedule_from_table(
    table: Mapping[str, Any], *, num_steps: int, steps_per_epoch: int
) -> Schedule:
    """Make the schedule that a recipe's table describes, as a function of the step.

    Args:
        table: ``kind`` (``"constant"``, ``"linear"``, ``"cosine"``, ``"step"``) and the arguments
            of this schedule. ``unit`` is the unit of all positions (``"step"``, the default,
            ``"epoch"`` or ``"run"``). In the first ``warmup`` steps, values are scaled up linearly.
            The default `length` of a line or cosine is the run's rest.
        num_steps: the number of steps in the run.
        steps_per_epoch: the number of steps per epoch.

    Raises:
        InvalidOption: if the kind, unit or a key is unknown, a key is missing, or the schedule
            rejects a value.
    """
    options = dict(table)
    kind = options.pop("kind", "")
    if not isinstance(kind, str) or kind not in _BY_KIND:
        raise InvalidOption(
            f"schedule kind is {kind!r}{nearest(str(kind), _BY_KIND)} kinds: {', '.join(_BY_KIND)}"
        )
    units = {"step": 1, "epoch": steps_per_epoch, "run": num_steps}
    unit = options.pop("unit", "step")
    if not isinstance(unit, str) or unit not in units:
        raise InvalidOption(
            f"schedule unit is {unit!r}{nearest(str(unit), units)} units: {', '.join(units)}"
        )
    warmup = options.pop("warmup", 0)

    accepted = {field.name: field for field in fields(_BY_KIND[kind])}
    for key, value in options.items():
        if key not in accepted:
            raise InvalidOption(
                f"a {kind} schedule has no key {key!r}{nearest(key, accepted)} "
                f"keys: {', '.join([*accepted, 'unit', 'warmup'])}"
            )
        numbers = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, list | tuple) != (kind == "step") or not all(
            _is_number(n) for n in numbers
        ):
            expected = "a list of numbers" if kind == "step" else "a number"
            raise InvalidOption(f"{key} of a {kind} schedule is {value!r}; expected {expected}")
    if "length" in accepted:
        options.setdefault("length", num_steps / units[unit] - options.get("begin", 0.0))
    missing = [name for name, f in accepted.items() if name not in options and f.default is MISSING]
    if missing:
        raise InvalidOption(f"a {kind} schedule needs {', '.join(map(repr, missing))}")
    if not _is_number(warmup) or warmup < 0:
        raise InvalidOption(
            f"warmup of a schedule is {warmup!r}; expected a number of steps, at least 0"
        )
    try:
        schedule: Schedule = _BY_KIND[kind](**options)
    except ValueError as error:
        raise InvalidOption(f"{kind} schedule: {error}") from error

    def value_at(step: float) -> float:
        # The factor is (step + 1) / warmup, so that the first step isn't multiplied by zero.
        factor = min(1.0, (step + 1.0) / warmup) if warmup else 1.0
        return schedule(step / units[unit]) * factor

    return value_at


class Schedules:
    """Schedules that are bound to attributes to set the values.

    Args:
        schedules: schedules by path. A path is the name of a root, then attributes, joined by dots:
            ``"loss.alpha"``, ``"optimizer.lr"``, ``"loss.loss.scale"`` inside a wrapper.
        roots: the objects where paths start, by name.

    Raises:
        DmlError: if a path doesn't lead to a number; the message suggests the nearest name that
            does.
    """

    def __init__(self, schedules: Mapping[str, Schedule], roots: Mapping[str, object]) -> None:
        self._schedules = dict(schedules)
        self._targets = {path: _find_target(roots, path) for path in schedules}
        # Decide once: a schedule that returns an int must not turn a float attribute into an int
        # for good.
        self._whole = {
            path
            for path, (owner, name) in self._targets.items()
            if isinstance(getattr(owner, name), int)
        }

    def apply(self, position: float) -> dict[str, float]:
        """Set all attributes to the values for this position.

        Args:
            position: in steps, from 0.

        Returns:
            The values by path. If an attribute was an int when it was bound, the value will be
            rounded to an int.
        """
        values: dict[str, float] = {}
        for path, schedule in self._schedules.items():
            owner, name = self._targets[path]
            value = schedule(position)
            value = round(value) if path in self._whole else float(value)
            setattr(owner, name, value)
            values[path] = value
        return values


def _find_target(roots: Mapping[str, object], path: str) -> tuple[object, str]:
    """Find the last object in a path and the name of its attribute."""
    first, *attributes = path.split(".")
    if first not in roots or not attributes:
        raise DmlError(
            f"schedule {path!r}: expected ROOT.ATTRIBUTE{nearest(first, roots)} roots: "
            f"{', '.join(roots)}"
        )
    owner, name = roots[first], attributes[-1]
    for attribute in attributes[:-1]:
        if not hasattr(owner, attribute):
            raise DmlError(
                f"schedule {path!r}: {type(owner).__name__} has no "
                f"{attribute!r}{nearest(attribute, dir(owner))}"
            )
        owner = getattr(owner, attribute)
    numbers = [
        known for known in dir(owner) if known[0] != "_" and _is_number(getattr(owner, known, None))
    ]
    if name not in numbers:
        raise DmlError(
            f"schedule {path!r}: {type(owner).__name__} has no number "
            f"{name!r}{nearest(name, numbers)} numbers: {', '.join(numbers) or 'none'}"
        )
    return owner, name


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
