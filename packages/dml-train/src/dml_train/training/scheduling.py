"""Build a recipe's schedules, and bind them to the attributes that they move."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from dml_core import (
    DmlError,
    InvalidOption,
    Registry,
    Schedule,
    Schedules,
    rank_and_world_size,
    schedule_from_table,
)
from dml_train.networks.model import LevelledLoss
from dml_train.recipe.tables import Optimizer


def build_schedules(
    tables: Mapping[str, Mapping[str, Any]],
    optimizer: Optimizer,
    num_steps: int,
    steps_per_epoch: int,
    roots: dict[str, object],
) -> Schedules:
    """Build the schedules in a recipe's tables and bind these to the attributes to move.

    If a linear or cosine schedule moves an option of the optimizer, it starts at the option's value
    by default. With levels, a path into the loss moves the attribute in the losses of all levels.
    """
    bound: dict[str, Schedule] = {}
    for path, table in tables.items():
        options: dict[str, Any] = dict(table)
        root, _, name = path.partition(".")
        if root == "optimizer" and options.get("kind") in ("linear", "cosine"):
            value: object = optimizer
            for attribute in name.split("."):
                value = getattr(value, attribute, None)
            if isinstance(value, float):
                options.setdefault("start", value)
        try:
            schedule = schedule_from_table(
                options, num_steps=num_steps, steps_per_epoch=steps_per_epoch
            )
        except DmlError as error:
            raise type(error)(f"[schedule.{path!r}]: {error}") from error
        below = [
            f"{key} is {given!r}"
            for key, given in _given_values(options).items()
            if np.min(given) < 0
        ]
        if root == "optimizer" and below:
            raise InvalidOption(
                f"[schedule.{path!r}]: {', '.join(below)}; expected numbers of at least 0, as in "
                "[optimizer]"
            )
        loss = roots["loss"]
        if root == "loss" and isinstance(loss, LevelledLoss) and not name.startswith("levels."):
            bound |= {f"loss.levels.{level}.{name}": schedule for level in range(len(loss.levels))}
        else:
            bound[path] = schedule
    return Schedules(bound, roots)


def check_loss_schedules(
    tables: Mapping[str, Mapping[str, Any]], loss: Mapping[str, Any], registry: Registry
) -> None:
    """Raise an `InvalidOption` if the loss rejects an extreme value of a schedule that moves an
    option of the loss.
    """
    classes = max(2, rank_and_world_size()[1])  # at least one per rank, if ranks share the classes
    context = {"num_classes": classes, "embedding_dim": 2, "steps_per_epoch": 1, "seed": 0}
    for path, options in tables.items():
        root, *names = path.split(".")
        given = [*_given_values(options).values()]
        for value in np.unique(np.hstack(given)).astype(float).tolist() if given else ():
            table = copy.deepcopy({**loss})
            owner: Any = table
            for name in names[:-1]:
                owner = owner.get(name) if isinstance(owner, dict) else None
            if (
                root != "loss"
                or not isinstance(owner, dict)
                or not isinstance(owner.get(names[-1]), float)
            ):
                continue
            owner[names[-1]] = value
            try:
                registry.build("losses", table, context)
            except InvalidOption as error:
                raise InvalidOption(f"[schedule.{path!r}] reaches {value:g}: {error}") from error


def _given_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a schedule's table; the schedule stays between these values."""
    return {key: options[key] for key in ("value", "values", "start", "end") if key in options}
