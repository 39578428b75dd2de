"""From a file, or the name of a bundled recipe, and what ``--set`` says of it, to a TOML document and a recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w

from dml_core import DmlError, InvalidOption, Registry
from dml_train.recipe.bundled import bundled_text
from dml_train.recipe.checking import parse
from dml_train.recipe.tables import Recipe


def load(source: str | Path, assignments: Iterable[str], registry: Registry) -> Recipe:
    """The recipe of a file or of a bundled name, with some keys set, whole and checked.

    Args:
        source: a path, or the name of a recipe that comes with the package.
        assignments: ``"loss.scale=32"``, …: what to change in it, each as `assign` takes it.
        registry: where the components' names and keys are looked up.

    Raises:
        DmlError: as `read` and `dml_train.recipe.checking.parse`.
    """
    document, origin = read(source, assignments)
    return parse(document, registry, origin)


def read(source: str | Path, assignments: Iterable[str] = ()) -> tuple[dict[str, Any], str]:
    """The TOML document of a file or of a bundled name, not yet checked, and what to call it in messages.

    Args:
        source: a path, or the name of a recipe that comes with the package.
        assignments: what to change in it, each as `assign` takes it, one after the other.

    Raises:
        DmlError: if there is no such file or name, it isn't TOML, or as `assign`.
    """
    text, origin = _text(source)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{origin} is not TOML: {error}") from error
    for assignment in assignments:
        assign(document, assignment)
    return document, origin


def _text(source: str | Path) -> tuple[str, str]:
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except OSError as error:
            raise DmlError(f"can't read the recipe {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DmlError(f"the recipe {path} is not UTF-8 text: {error}") from error
    return bundled_text(str(source)), f"recipe {source}"


def assign(document: dict[str, Any], assignment: str) -> None:
    """Carry out ``KEY=VALUE`` on a TOML document: read as a line of TOML, or else with the value as a string.

    What stood at the key is gone, a whole table, too: ``loss={name="arc-face"}`` leaves no option of another loss.

    Raises:
        InvalidOption: if it has no ``=``, the key isn't a dotted TOML key, or leads through what isn't a table, or
            more than one key is set.
    """
    key, equals, value = assignment.partition("=")
    if not equals or not key.strip():
        raise InvalidOption(f"--set {assignment!r}: expected KEY=VALUE, e.g. --set loss.scale=32")
    try:
        change = tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        try:
            change = tomllib.loads(f"{key} = {tomli_w.dumps({'x': value}).partition('=')[2]}")
        except tomllib.TOMLDecodeError as error:
            raise InvalidOption(f"--set {assignment!r}: {key!r} is not a dotted TOML key: {error}") from error
    way = tomllib.loads(f"{key} = 0")  # the key alone: a table in the value is no part of it
    table: Any = document
    while True:
        if change.keys() != way.keys() or len(way) != 1:
            raise InvalidOption(f"--set {assignment!r}: expected one key and its value")
        name, further = way.popitem()
        if not isinstance(further, dict):
            table[name] = change[name]
            return
        table, change, way = table.setdefault(name, {}), change[name], further
        if not isinstance(table, dict):
            raise InvalidOption(f"--set {assignment!r}: {name!r} is {table!r} in the recipe, not a table")
