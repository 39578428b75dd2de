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
    """Build the schedules in a recipe's tables and bind each to the attribute that it moves.

    If a linear or cosine schedule moves an option of the optimizer, it starts at the option's value by default. With
    several levels, a path into the loss moves the attribute in the loss of each level.
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
            schedule = schedule_from_table(options, num_steps=num_steps, steps_per_epoch=steps_per_epoch)
        except DmlError as error:
            raise type(error)(f"[schedule.{path!r}]: {error}") from error
        if root == "optimizer" and (below := _below_zero(options)):
            raise InvalidOption(
                f"[schedule.{path!r}]: {below}; expected numbers of at least 0, as in [optimizer]"
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
    """Raise an `InvalidOption` if the loss rejects an extreme value of a schedule that moves an option of the loss."""
    classes = max(2, rank_and_world_size()[1])  # at least one per rank, if ranks share the classes
    context = {"num_classes": classes, "embedding_dim": 2, "steps_per_epoch": 1, "seed": 0}
    for path, options in tables.items():
        root, *names = path.split(".")
        given = {key: options[key] for key in ("value", "values", "start", "end") if key in options}
        for value in sorted({float(one) for one in np.hstack([*given.values()])} if given else ()):
            table = copy.deepcopy({**loss})
            owner: Any = table
            for name in names[:-1]:
                owner = owner.get(name) if isinstance(owner, dict) else None
            if root != "loss" or not isinstance(owner, dict) or not isinstance(owner.get(names[-1]), float):
                continue
            owner[names[-1]] = value
            try:
                registry.build("losses", table, context)
            except InvalidOption as error:
                raise InvalidOption(f"[schedule.{path!r}] reaches {value:g}: {error}") from error


def _below_zero(options: Mapping[str, Any]) -> str:
    """Describe the negative values in a schedule's table; a schedule stays between the values in its table."""
    named = {key: options[key] for key in ("value", "values", "start", "end") if key in options}
    return ", ".join(f"{key} is {given!r}" for key, given in named.items() if np.min(given) < 0)
