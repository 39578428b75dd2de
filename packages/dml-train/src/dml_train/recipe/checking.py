"""Check a TOML document before anything starts, and turn it into a recipe with all defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dml_core import CONTEXT, DmlError, InvalidOption, Kind, Registry, metric_family, nearest
from dml_core.errors import join_errors
from dml_core.registry import map_components
from dml_train.recipe.tables import (
    OLD_METRIC_KEYS,
    VARIANT_TAGS,
    Evaluation,
    Logging,
    Recipe,
    list_tables,
)

# Tables that select a component by `name`.
_COMPONENTS: Mapping[str, Kind] = {
    "dataset": "datasets",
    "backbone": "backbones",
    "sampler": "samplers",
    "loss": "losses",
}


def parse(document: Mapping[str, Any], registry: Registry, origin: str = "the recipe") -> Recipe:
    """Check a TOML document and return the recipe with all defaults.

    Raise a `DmlError` if there are mistakes; the message lists all mistakes with the key and the
    expected value.

    Args:
        document: the resolved document (see `dml_train.recipe.loading.read`); not changed.
        registry: provides the components' names and options.
        origin: name of the document in messages.
    """
    mistakes: list[DmlError] = []
    try:
        recipe = Recipe.model_validate(document)
    except ValidationError as error:
        mistakes += [InvalidOption(_message(details, document)) for details in error.errors()]
    for kind, table in _component_tables(document):
        if kind == "evaluators" and (old := find_old_keys(table, registry)) is not None:
            mistakes.append(old)
            table = {key: value for key, value in table.items() if key not in OLD_METRIC_KEYS}
        mistakes += registry.mistakes(kind, table)
    if mistakes:
        joined = join_errors(mistakes)
        raise type(joined)(f"{origin}: {joined}")
    filled: dict[str, Any] = {
        name: _fill_defaults(registry, kind, getattr(recipe, name))
        for name, kind in _COMPONENTS.items()
    }
    filled["evaluation"] = _fill_defaults(registry, "evaluators", recipe.evaluation.component())
    loggers = [_fill_defaults(registry, "loggers", table) for table in recipe.logging.loggers]
    evaluation = recipe.evaluation.model_dump() | filled.pop("evaluation")
    _check_selection(recipe, evaluation.get("metrics"), origin)
    return recipe.model_copy(
        update=filled
        | {
            "evaluation": Evaluation.model_validate(evaluation),
            "logging": recipe.logging.model_copy(update={"loggers": loggers}),
        }
    )


def find_old_keys(table: Mapping[str, Any], registry: Registry) -> InvalidOption | None:
    """Describe former keys of metrics in an evaluator's table, unless the evaluator defines such
    options.
    """
    found = [key for key in OLD_METRIC_KEYS if key in table]
    name = table.get("name")
    if not found or not isinstance(name, str) or name not in registry.entries("evaluators"):
        return None
    own = {option.name for option in registry.entry("evaluators", name).component.options}
    if own & {*found}:
        return None
    names = ", ".join(f'"{OLD_METRIC_KEYS[key]}"' for key in found)
    keys = " and ".join(map(repr, found))
    return InvalidOption(
        f"[evaluation] has {keys}; expected the names of all metrics in one list: metrics = "
        f"[{names}]"
    )


def _check_selection(recipe: Recipe, metrics: Any, origin: str) -> None:
    """Check that the evaluator measures the metric that selects weights, if all metrics have known
    names.
    """
    metric = recipe.validation.metric
    if not recipe.validation.selects or not isinstance(metrics, list) or metric in metrics:
        return
    if all(isinstance(name, str) and metric_family(name) for name in metrics):
        raise InvalidOption(
            f"{origin}: validation.metric is {metric!r}{nearest(metric, metrics)} "
            f"evaluation.metrics: {', '.join(metrics)}"
        )


def _component_tables(document: Mapping[str, Any]) -> list[tuple[Kind, Mapping[str, Any]]]:
    """List the components' tables in the document, even if other parts of the document are
    wrong.
    """
    given = {name: table for name, table in document.items() if isinstance(table, Mapping)}
    found = [(kind, given[name]) for name, kind in _COMPONENTS.items() if name in given]
    of_the_recipe = Evaluation.model_fields.keys() - {"name"}
    evaluation = {k: v for k, v in given.get("evaluation", {}).items() if k not in of_the_recipe}
    found.append(("evaluators", {"name": Evaluation().name} | evaluation))
    loggers = given.get("logging", {}).get("loggers", Logging().loggers)
    if isinstance(loggers, list):
        found += [("loggers", table) for table in loggers if isinstance(table, Mapping)]
    return found


def _fill_defaults(registry: Registry, kind: Kind, table: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of a component's factory to a table, if TOML can represent the values."""
    filled: dict[str, Any] = {"name": table["name"]}
    for option in registry.entry(kind, table["name"]).component.options:
        default = option.default
        if option.name not in CONTEXT[kind] and isinstance(
            default, bool | int | float | str | list | tuple
        ):
            filled[option.name] = list(default) if isinstance(default, tuple) else default
    for key, value in table.items():
        if isinstance(value, dict):
            filled[key] = map_components(value, partial(_fill_defaults, registry, kind))
        elif type(value) is int and isinstance(filled.get(key), float):
            # Read `scale = 32` as 32.0, since a schedule may move the scale through fractions.
            filled[key] = float(value)
        else:
            filled[key] = value
    return filled


def _message(details: ErrorDetails, document: Mapping[str, Any]) -> str:
    """Describe an error of pydantic in terms of a recipe."""
    location = [str(part) for part in details["loc"] if part not in VARIANT_TAGS]
    path, key = ".".join(location), location[-1] if location else ""
    if details["type"] == "extra_forbidden":
        table: type[BaseModel] = Recipe
        for part in location[:-1]:
            annotation = table.model_fields[part].annotation
            assert isinstance(annotation, type)
            table = annotation
        where = f"table [{'.'.join(location[:-1])}] has" if location[:-1] else "a recipe has"
        known = list(table.model_fields)
        within = [] if location[:-1] else _tables_with(key, document)
        suggested = (
            f"; did you mean {' or '.join(map(repr, within))}?" if within else nearest(key, known)
        )
        return f"{where} no key {key!r}{suggested} keys: {', '.join(known)}"
    if details["type"] == "missing":
        return f"the table [{path}] is missing" if len(location) == 1 else f"{path} is missing"
    if details["type"] in ("dict_type", "model_type") and len(location) == 1:
        given = details["input"]
        remedy = (
            f': {path}={{name="{given}"}}' if isinstance(given, str) and path in _COMPONENTS else ""
        )
        return f"{path} is {given!r}; expected a table{remedy}"
    message = details["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if details["type"] != "value_error":
        return f"{path} is {details['input']!r}: {message}"
    return f"[{path}]: {message}" if path else message


def _tables_with(key: str, document: Mapping[str, Any]) -> list[str]:
    """List the dotted keys ``TABLE.key`` that exist in recipes in general, or in a table of this
    document.
    """
    found = [f"{name}.{key}" for name, table in list_tables().items() if key in table.model_fields]
    given = {name: table for name, table in document.items() if isinstance(table, Mapping)}
    return list(
        dict.fromkeys([*found, *(f"{name}.{key}" for name, table in given.items() if key in table)])
    )
