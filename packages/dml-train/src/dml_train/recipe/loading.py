"""Load a recipe by path or bundled name, apply `extends` and overrides, and check it."""

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
    """Load a recipe, change some keys, and check the result.

    Args:
        source: a path, or the name of a bundled recipe.
        overrides: changes to make after `extends` is resolved, as a mapping,
            ``{"loss.scale": 32}``, or as in the command's ``--set``, ``["loss.scale=32"]``.
        registry: provides the components' names and options; default: the components of all
            installed plugins.

    Raises:
        DmlError: if the recipe can't be read (see `read`), or is invalid (see
            `dml_train.recipe.checking.parse`).

    Example:
        >>> from dml_train import load_recipe
        >>> load_recipe("demo", {"training.steps": 100}).training.steps
        100
    """
    document, origin = read(source, overrides)
    return parse(document, registry or installed(), origin)


def read(
    source: str | Path, overrides: Iterable[str] | Mapping[str, Any] = ()
) -> tuple[dict[str, Any], str]:
    """Read a recipe, resolve `extends` and apply overrides; return the unchecked document, and a
    name for messages.

    See `load_recipe` for the arguments, and `read_chain`, `resolve` and `assign` for the errors.
    """
    chain = read_chain(source)
    document = resolve(chain)
    if isinstance(overrides, str):
        raise TypeError(
            f"overrides is the string {overrides!r}; expected a list of strings, or a mapping"
        )
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            set_value(document, key, value)
    else:
        for override in overrides:
            assign(document, override)
    for key in (EXTENDS, DROP):
        if key in document:
            raise InvalidOption(
                f"can't set {key!r}: it is resolved before any override; write it in a file"
            )
    origin = chain[0].name if chain[0].path else f"recipe {chain[0].name}"
    parents = ", ".join(parent.name for parent in chain[1:])
    return document, f"{origin} (extends {parents})" if parents else origin


def assign(document: dict[str, Any], override: str) -> None:
    """Apply ``KEY=VALUE`` to a TOML document; a value that isn't TOML is a string.

    The value replaces the previous value, even a table. For example, ``loss={name="arc-face"}``
    removes all options of the previous loss. Raise an `InvalidOption` unless there is an ``=`` and
    a single key; see `set_value`.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InvalidOption(f"can't set {override!r}: expected KEY=VALUE, as in loss.scale=32")
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        value = {"value": text}
    if len(value) != 1:
        raise InvalidOption(f"can't set {override!r}: expected a key and a value")
    set_value(document, key, value["value"])


def set_value(document: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a TOML document, and replace the previous value.

    Raise an `InvalidOption` if the key isn't a dotted TOML key, or a part of the key names a value
    that isn't a table.
    """
    try:
        *tables, last = split_key(key)
    except InvalidOption as error:
        raise InvalidOption(f"can't set {key!r}: {error}") from error
    owner: Any = document
    for name in tables:
        owner = owner.setdefault(name, {})
        if not isinstance(owner, dict):
            raise InvalidOption(
                f"can't set {key!r}: {name!r} is {owner!r} in the recipe, not a table"
            )
    owner[last] = value
