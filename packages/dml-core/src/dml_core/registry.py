"""Look up a component by name to make it from a recipe's table.

registry().build(
    "losses",
    {"name": "norm-softmax", "temperature": 0.05},
    {"num_classes": 100, "embedding_dim": 64, "steps_per_epoch": 50, "seed": 0},
)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from typing import Any

from dml_core.components import Component
from dml_core.errors import (
    DmlError,
    DuplicateName,
    InvalidOption,
    UnknownName,
    join_errors,
    nearest,
)
from dml_core.kinds import CONTEXT, KINDS, SINGULAR, Kind
from dml_core.plugins import Plugins, Provider, plugins

_LISTED = 5  # the largest number of names in an error


@dataclass(frozen=True, slots=True)
class Entry:
    """A component, and the plugin that provides it."""

    component: Component
    provider: Provider


class Registry:
    """All components that the plugins provide, by kind and name.

    Args:
        source: the plugins. A kind's hook is called once, when a component of this kind is first
            looked up.
    """

    def __init__(self, source: Plugins) -> None:
        self.plugins = source
        self._entries: dict[Kind, dict[str, Entry]] = {}

    def entries(self, kind: Kind) -> Mapping[str, Entry]:
        """List the components of a kind by name, sorted by name.

        Raises:
            UnknownName: if the kind doesn't exist.
            DuplicateName: if a name is provided twice.
        """
        if kind not in KINDS:
            raise UnknownName(
                f"unknown kind of component {kind!r}{nearest(kind, KINDS)} kinds: "
                f"{', '.join(KINDS)}"
            )
        if kind not in self._entries:
            found: dict[str, Entry] = {}
            for component, provider in self.plugins.collect(
                f"dml_{kind}", Component, "an iterable of Component"
            ):
                entry, name = Entry(component, provider), component.name
                if name in found:
                    raise DuplicateName(
                        f"two plugins provide the {SINGULAR[kind]} {name!r}: "
                        f"{found[name].provider} ({found[name].provider.entry_point}) and "
                        f"{entry.provider} ({entry.provider.entry_point}); uninstall one of them "
                        "or ask its author to rename it"
                    )
                found[name] = entry
            self._entries[kind] = dict(sorted(found.items()))
        return self._entries[kind]

    def entry(self, kind: Kind, name: str) -> Entry:
        """Look up the component of this kind and name.

        Raises:
            UnknownName: if it doesn't exist; the message lists the nearest names and plugins that
                failed to load.
            DuplicateName: if a name is provided twice.
        """
        entries = self.entries(kind)
        if name in entries:
            return entries[name]
        known = f"known: {', '.join(entries) or 'none: no installed plugin provides any'}"
        if len(entries) > _LISTED:
            close = get_close_matches(name, entries, _LISTED, cutoff=0)
            known = f"nearest: {', '.join(close)}; 'dml plugins {kind}' lists all {len(entries)}"
        message = f"unknown {SINGULAR[kind]} {name!r}{suggest(name, entries)} {known}"
        family, slash, _ = name.rpartition("/")
        if slash and not any(other.startswith(family + slash) for other in entries):
            message += (
                f"\nno installed plugin provides any {SINGULAR[kind]} '{family}/...': "
                f"install the package that does, or its extra, for example 'a-package[{family}]'"
            )
        raise UnknownName(message + self.plugins.describe_failures())

    def check(self, kind: Kind, table: Mapping[str, Any]) -> None:
        """Check a recipe's table, but do not make the component.

        Args:
            kind: the kind of the component.
            table: ``{"name": …, option: value, …}``. If the value of an option is itself a table
                with a ``name``, it describes a component of this kind, for example a wrapped loss.
                A table of such tables describes multiple components, for example the terms of a
                sum.

        Raises:
            UnknownName, DuplicateName: see `entry`.
            InvalidOption: if a key isn't an option, a value doesn't match the option's annotation,
                or a required option is missing in both the table and the kind's context. Multiple
                mistakes are raised as a single error.
        """
        if mistakes := list(self.mistakes(kind, table)):
            raise join_errors(mistakes)

    def mistakes(self, kind: Kind, table: Mapping[str, Any]) -> Iterator[DmlError]:
        """Yield an error per mistake that `check` finds, including mistakes in nested tables."""
        for value in table.values():
            nested: list[Mapping[str, Any]] = []
            map_components(value, nested.append)
            for each in nested:
                yield from self.mistakes(kind, each)
        try:
            entry, values = self._resolve(kind, table)
            yield from _mistakes_of_values(kind, entry, values)
        except DmlError as error:
            yield error

    def build(self, kind: Kind, table: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
        """Make the component that a recipe's table describes.

        Args:
            kind: the kind of the component.
            table: ``{"name": …, option: value, …}``. Nested tables with a ``name`` will be built
                first, using the same context, or by the factory itself (see `Component.deferred`).
            context: values for the names in ``CONTEXT[kind]``. The factory receives a value if it
                has an option of this name that the table doesn't set.

        Raises:
            UnknownName, DuplicateName, InvalidOption: see `check`.
            InvalidOption: also if the factory raises a TypeError, ValueError or similar error.
            TypeError: if the names in `context` aren't exactly ``CONTEXT[kind]``.
        """
        self.check(kind, table)
        if set(context) != set(CONTEXT[kind]):
            raise TypeError(
                f"the context of {SINGULAR[kind]} {table['name']!r} has the names "
                f"{', '.join(context) or 'none'}; expected exactly: {', '.join(CONTEXT[kind])}"
            )
        return self._make(kind, table, context)

    def _make(self, kind: Kind, table: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
        entry, values = self._resolve(kind, table)
        given = {
            option.name: context[option.name]
            for option in entry.component.options
            if option.name in context
        }
        for key, value in values.items():
            make = partial(self._make, kind, context=context)
            if key in entry.component.deferred:
                make = partial(partial, make)  # the factory makes the component
            given[key] = map_components(value, make)
        try:
            return entry.component.factory(**given)
        except DmlError:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidOption(f"{_describe(kind, entry)}: {error}") from error
        except (ArithmeticError, AssertionError, AttributeError, LookupError) as error:
            # Other libraries raise these errors for bad options. Add the type, since the text can
            # be as short as '0'.
            raise InvalidOption(
                f"{_describe(kind, entry)}: {type(error).__name__}: {error}"
            ) from error

    def _resolve(self, kind: Kind, table: Mapping[str, Any]) -> tuple[Entry, dict[str, Any]]:
        """Return the table's component, and the values that the table gives to options."""
        name = table.get("name")
        if not isinstance(name, str):
            given = ", ".join(map(str, table)) or "nothing"
            raise InvalidOption(
                f"a {SINGULAR[kind]} table needs a key 'name' with a string; got the keys: "
                f"{given}. known: {', '.join(self.entries(kind))}"
            )
        return self.entry(kind, name), {key: value for key, value in table.items() if key != "name"}


@cache
def registry() -> Registry:
    """Return the registry of the installed plugins, which is shared in this process."""
    return Registry(plugins())


def suggest(name: str, known: Iterable[str]) -> str:
    """Suggest a known name: a different library's class that contains `name` (triplet, supcon), or
    the nearest name.

    `name` can be slightly misspelt, for example tripplet.
    """
    names, word = list(known), name.lower().replace("-", "")
    classes = [other for other in names if "/" in other and word in other.lower()]
    if not classes:
        words = {
            other: [part.lower() for part in re.findall("[A-Z][a-z]+", other)] for other in names
        }
        classes = [
            other
            for other in names
            if "/" in other and get_close_matches(word, words[other], 1, 0.9)
        ]
    if len(word) < 4 or not classes or word in (other.replace("-", "") for other in names):
        return nearest(name, names)
    return f"; did you mean {' or '.join(map(repr, classes))}?"


def map_components(value: Any, function: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Replace a component's table, or each in a table of such tables, by the function's result;
    keep other values.
    """
    if _is_component_table(value):
        return function(value)
    if isinstance(value, Mapping) and any(map(_is_component_table, value.values())):
        return {
            name: function(table) if isinstance(table, Mapping) else table
            for name, table in value.items()
        }
    return value


def _is_component_table(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("name"), str)


def _describe(kind: Kind, entry: Entry) -> str:
    factory = getattr(entry.component.factory, "__qualname__", repr(entry.component.factory))
    return f"{SINGULAR[kind]} {entry.component.name!r} ({factory} of {entry.provider})"


def _mistakes_of_values(kind: Kind, entry: Entry, values: Mapping[str, Any]) -> Iterator[DmlError]:
    component, context = entry.component, CONTEXT[kind]
    options = {option.name: option for option in component.options}
    for key, value in values.items():
        if key not in options:
            if component.takes_any_option:
                continue
            known = [name for name in options if name not in context]
            yield InvalidOption(
                f"{_describe(kind, entry)} has no option {key!r}{nearest(key, known)} "
                f"options: {', '.join(known) or 'none'}"
            )
        elif not _is_component_table(value) and not options[key].fits(value):
            yield InvalidOption(
                f"{_describe(kind, entry)}: option {key!r} is {value!r}, of type "
                f"{type(value).__name__}; expected {options[key].expected}"
            )
    missing = [
        name
        for name, option in options.items()
        if option.required and name not in values and name not in context
    ]
    if missing:
        yield InvalidOption(
            f"{_describe(kind, entry)} needs {', '.join(map(repr, missing))}; add it to the "
            f"recipe's table (the run gives only {', '.join(context)})"
        )
