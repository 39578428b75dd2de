"""Loading a recipe: from a file or a bundled name, through `extends` and overrides, to a checked recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dml_core import InvalidOption, Registry
from dml_core import registry as installed
from dml_train.recipe.checking import parse
from dml_train.recipe.extending import DROP, EXTENDS, read_chain, resolve, split_key
from dml_train.recipe.tables import Recipe


def load_recipe(
    source: str | Path,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    registry: Registry | None = None,
) -> Recipe:
    """Load a recipe, change some keys, and check it.

    Args:
        source: a path, or the name of a bundled recipe.
        overrides: changes made after `extends` is resolved: ``{"loss.scale": 32}``, or ``["loss.scale=32"]`` as the
            command takes them.
        registry: provides the components' names and options; default: those of all installed plugins.

    Raises:
        DmlError: as `read` and `dml_train.recipe.checking.parse`.

    Example:
        >>> from dml_train import load_recipe
        >>> load_recipe("demo", {"training.steps": 100}).training.steps
        100
    """
    document, origin = read(source, overrides)
    return parse(document, registry or installed(), origin)


def read(source: str | Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> tuple[dict[str, Any], str]:
    """Read a recipe's resolved TOML document, unchecked, and its name for messages.

    Args:
        source: a path, or the name of a bundled recipe.
        overrides: changes, made in order: values by dotted key, or texts that `assign` takes.

    Raises:
        DmlError: as `dml_train.recipe.extending.read_chain` and `resolve`, and as `assign`.
    """
    chain = read_chain(source)
    document = resolve(chain)
    if isinstance(overrides, str):
        raise TypeError(f"overrides is the string {overrides!r}; expected a list of strings, or a mapping")
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            set_value(document, key, value)
    else:
        for override in overrides:
            assign(document, override)
    for key in (EXTENDS, DROP):
        if key in document:
            raise InvalidOption(f"can't set {key!r}: it is resolved before any override; write it in a file")
    origin = chain[0].name if chain[0].path else f"recipe {chain[0].name}"
    parents = ", ".join(parent.name for parent in chain[1:])
    return document, f"{origin} (extends {parents})" if parents else origin


def assign(document: dict[str, Any], override: str) -> None:
    """Carry out ``KEY=VALUE`` on a TOML document; a value that isn't TOML is a string.

    The value replaces the previous one, also a whole table: ``loss={name="arc-face"}`` keeps no option of another
    loss.

    Raises:
        InvalidOption: if it has no ``=``, the key isn't a dotted TOML key or leads through a value that isn't a
            table, or more than one key is set.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InvalidOption(f"can't set {override!r}: expected KEY=VALUE, as in loss.scale=32")
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        value = {"value": text}
    if len(value) != 1:
        raise InvalidOption(f"can't set {override!r}: expected one key and its value")
    set_value(document, key, value["value"])


def set_value(document: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of a TOML document, replacing its previous value.

    Raises:
        InvalidOption: if the key isn't a dotted TOML key, or leads through a value that isn't a table.
    """
    try:
        *tables, last = split_key(key)
    except InvalidOption as error:
        raise InvalidOption(f"can't set {key!r}: {error}") from error
    owner: Any = document
    for name in tables:
        owner = owner.setdefault(name, {})
        if not isinstance(owner, dict):
            raise InvalidOption(f"can't set {key!r}: {name!r} is {owner!r} in the recipe, not a table")
    owner[last] = value
