"""Merge a recipe with the recipe that it extends, so that a recipe need only state differences.

Use the key ``extends = "memvir/norm-softmax-cub"`` to name a recipe's parent: a bundled recipe, or
a path that ends in ``.toml``, relative to the file. The child is merged into the parent's document:

- A table is merged key by key. If the child sets a different ``name`` (for a component) or ``kind``
  (for a schedule), the child's table replaces the parent's, since options of a different component
  are meaningless.
- Any other value, also an array, replaces the parent's value.
- ``drop = ["training.epochs", "schedule.'loss.alpha'"]`` first removes keys or tables from the
  parent's document.

The result is a complete document that doesn't use `extends`.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml_core import DmlError, InvalidOption, UnknownName, nearest
from dml_train.recipe.bundled import bundled_text
from dml_train.recipe.tables import Evaluation, Optimizer

EXTENDS, DROP = "extends", "drop"
_SELECTORS = ("name", "kind")
# The default names if a parent's table doesn't give a name.
_DEFAULT_NAMES = {"optimizer": Optimizer().name, "evaluation": Evaluation().name}


@dataclass(frozen=True, slots=True)
class Source:
    """A recipe as written."""

    text: str
    document: Mapping[str, Any]  # the parsed text
    path: Path | None  # None for a bundled recipe
    name: str  # the path, or the bundled name


def read_source(source: str | Path) -> Source:
    """Read a recipe by path or bundled name; raise a `DmlError` if the recipe doesn't exist, or
    isn't UTF-8.
    """
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        return _read(str(path), path)
    try:
        return _read(str(source), None)
    except UnknownName as error:
        if not path.is_dir():
            raise
        raise UnknownName(
            f"{error}. {path} is a folder: to train on the images, use the recipe 'my-images' with "
            f"dataset.root={path}"
        ) from error


def read_chain(source: str | Path) -> list[Source]:
    """Read a recipe, the parent, and so on, up to a recipe that doesn't use `extends`.

    Raise a `DmlError` if a recipe can't be read (see `read_source`), or extends itself directly or
    indirectly.
    """
    chain = [read_source(source)]
    seen: set[str] = set()
    while True:
        child = chain[-1]
        identity = str(child.path.resolve()) if child.path else child.name
        if identity in seen:
            raise InvalidOption(
                f"recipes extend each other in a circle: {_arrows(chain)}; remove extends from one "
                "recipe"
            )
        seen.add(identity)
        parent = child.document.get(EXTENDS)
        if parent is None:
            return chain
        path = Path(parent) if parent.endswith(".toml") else None
        if path and child.path:
            path = child.path.parent / path
        try:
            chain.append(_read(str(path or parent), path))
        except DmlError as error:
            raise type(error)(f"{_arrows(chain)} extends {parent!r}: {error}") from error


def resolve(chain: list[Source]) -> dict[str, Any]:
    """Merge a chain of recipes, child first, into a single document, and remove `extends`.

    Raise an `InvalidOption` if a recipe drops a key that the parent doesn't have.
    """
    *children, root = chain
    resolved = copy.deepcopy({**root.document})
    for child in reversed(children):
        document = {key: value for key, value in child.document.items() if key != EXTENDS}
        for key in document.pop(DROP, []):
            try:
                remove(resolved, key)
            except InvalidOption as error:
                raise InvalidOption(f"{child.name}: drop: the parent has {error}") from error
        resolved = merge(resolved, document)
    return resolved


def merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parent's table with the child's table merged into it; the arguments don't
    change.
    """
    merged = dict(parent)
    for key, value in child.items():
        inherited = parent.get(key)
        if isinstance(value, Mapping) and isinstance(inherited, Mapping):
            default = _DEFAULT_NAMES.get(key)
            same = all(value[s] == inherited.get(s, default) for s in _SELECTORS if s in value)
            merged[key] = merge(inherited, value) if same else value
        else:
            merged[key] = value
    return merged


def split_key(key: str) -> list[str]:
    """Split a dotted TOML key, such as ``schedule."optimizer.lr".end``; raise an `InvalidOption` if
    it is not valid.
    """
    try:
        table = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{key!r} is not a dotted TOML key: {error}") from error
    parts = []
    value: Any = table
    while isinstance(value, dict):
        if len(value) != 1:
            raise InvalidOption(f"{key!r} is not a dotted TOML key")
        ((part, value),) = value.items()
        parts.append(part)
    return parts


def remove(document: dict[str, Any], key: str) -> None:
    """Remove a dotted key or a table from a document; raise an `InvalidOption` if the document
    doesn't have it.
    """
    parts = split_key(key)
    owner, value = document, document
    for part in parts:
        owner = value
        if not isinstance(owner, dict) or part not in owner:
            known = owner if isinstance(owner, dict) else ()
            raise InvalidOption(
                f"no key {key!r}{nearest(part, known)} keys: {', '.join(known) or 'none'}"
            )
        value = owner[part]
    del owner[parts[-1]]


def _read(name: str, path: Path | None) -> Source:
    """Read a recipe from `path`, or the bundled recipe `name` if a path isn't given, and check
    `extends` and `drop`.
    """
    try:
        text = path.read_text(encoding="utf-8") if path else bundled_text(name)
        document = tomllib.loads(text)
    except OSError as error:
        raise DmlError(f"can't read the recipe {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DmlError(f"the recipe {name} is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{name} is not TOML: {error}") from error
    parent, dropped = document.get(EXTENDS), document.get(DROP, [])
    if parent is not None and (not isinstance(parent, str) or not parent):
        raise InvalidOption(f"{name}: extends is {parent!r}; expected a recipe's name or path")
    if not isinstance(dropped, list) or not all(isinstance(key, str) for key in dropped):
        raise InvalidOption(f"{name}: drop is {dropped!r}; expected a list of dotted keys")
    if dropped and parent is None:
        raise InvalidOption(
            f"{name}: drop is given, but extends is not; drop removes keys of the parent"
        )
    return Source(text, document, path, name)


def _arrows(chain: list[Source]) -> str:
    return " → ".join(source.name for source in chain)
