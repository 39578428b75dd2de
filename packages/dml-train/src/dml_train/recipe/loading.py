"""Loading a recipe: from a file or a bundled name, through `extends` and overrides, to a checked recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dml_core import InvalidOption, Registry
from dml_train.recipe.checking import parse
from dml_train.recipe.extending import DROP, EXTENDS, read_chain, resolve, split_key
from dml_train.recipe.tables import Recipe


def load_recipe(source: str | Path, overrides: Iterable[str], registry: Registry) -> Recipe:
    """Load a recipe, change some keys, and check it.

    Args:
        source: a path, or the name of a bundled recipe.
        overrides: ``"loss.scale=32"``, …: changes, each as `assign` takes it, after `extends` is resolved.
        registry: provides the components' names and options.

    Raises:
        DmlError: as `read` and `dml_train.recipe.checking.parse`.
    """
    document, origin = read(source, overrides)
    return parse(document, registry, origin)


def read(source: str | Path, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], str]:
    """Read a recipe's resolved TOML document, unchecked, and its name for messages.

    Args:
        source: a path, or the name of a bundled recipe.
        overrides: changes, each as `assign` takes it, made in order.

    Raises:
        DmlError: as `dml_train.recipe.extending.read_chain` and `resolve`, and as `assign`.
    """
    chain = read_chain(source)
    document = resolve(chain)
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
        *tables, last = split_key(key)
    except InvalidOption as error:
        raise InvalidOption(f"can't set {override!r}: {error}") from error
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        value = {"value": text}
    if len(value) != 1:
        raise InvalidOption(f"can't set {override!r}: expected one key and its value")
    owner: Any = document
    for name in tables:
        owner = owner.setdefault(name, {})
        if not isinstance(owner, dict):
            raise InvalidOption(f"can't set {override!r}: {name!r} is {owner!r} in the recipe, not a table")
    owner[last] = value["value"]
