"""Names to things: looking a component up, and making it from a recipe's table.

registry().build("losses", {"name": "norm-softmax", "temperature": 0.05}, {"num_classes": 100, "embedding_dim": 64})
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dml_core.components import Component
from dml_core.errors import DmlError, DuplicateName, InvalidOption, UnknownName, nearest
from dml_core.plugins import Failure, Plugins, Provider, plugins

Kind = Literal["losses", "samplers", "backbones", "datasets", "evaluators", "loggers"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)

_SINGULAR = {kind: kind.removesuffix("s") for kind in KINDS} | {"losses": "loss"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A component and its provider."""

    component: Component
    provider: Provider


class Registry:
    """All components that the plugins bring, by kind and name.

    Args:
        source: the plugins to ask. Each kind is asked for once, when it is first looked up.
    """

    def __init__(self, source: Plugins) -> None:
        self.plugins = source
        self._entries: dict[Kind, dict[str, Entry]] = {}

    def entries(self, kind: Kind) -> Mapping[str, Entry]:
        """The components of a kind by name, in the order of their names.

        Raises:
            UnknownName: if there is no such kind.
            DuplicateName: if two plugins provide one name.
        """
        if kind not in KINDS:
            raise UnknownName(
                f"unknown kind of component {kind!r}{nearest(kind, KINDS)} kinds: {', '.join(KINDS)}"
            )
        if kind not in self._entries:
            found: dict[str, Entry] = {}
            for entry in self._collect(kind):
                name = entry.component.name
                if name in found:
                    raise DuplicateName(
                        f"two plugins provide the {_SINGULAR[kind]} {name!r}: {found[name].provider} "
                        f"({found[name].provider.entry_point}) and {entry.provider} "
                        f"({entry.provider.entry_point}); uninstall one of them or ask its author to rename it"
                    )
                found[name] = entry
            self._entries[kind] = dict(sorted(found.items()))
        return self._entries[kind]

    def entry(self, kind: Kind, name: str) -> Entry:
        """The component of this kind and name.

        Raises:
            UnknownName: if there is none, with the nearest name and the plugins that failed to load.
            DuplicateName: if two plugins provide one name.
        """
        entries = self.entries(kind)
        if name in entries:
            return entries[name]
        known = ", ".join(entries) or "none: no installed plugin brings any"
        message = f"unknown {_SINGULAR[kind]} {name!r}{nearest(name, entries)} known: {known}"
        family, slash, _ = name.rpartition("/")
        if slash and not any(other.startswith(family + slash) for other in entries):
            message += (
                f"\nnothing installed brings any {_SINGULAR[kind]} '{family}/...': "
                f"install the package that does, or its extra for them, as in 'a-package[{family}]'"
            )
        if failures := self.plugins.failures:
            count = "1 plugin" if len(failures) == 1 else f"{len(failures)} plugins"
            message += f"\n{count} failed to load (see 'dml plugins'):" + "".join(
                f"\n  {f}" for f in failures
            )
        raise UnknownName(message)

    def check(self, kind: Kind, table: Mapping[str, Any], context: Iterable[str]) -> None:
        """Find what is wrong with a recipe's table without making anything.

        Args:
            kind: what the table describes.
            table: ``{"name": …, option: value, …}``; an option that is itself a table with a ``name`` is a
                component of the same kind (a wrapped loss).
            context: the names that will be given as context.

        Raises:
            UnknownName, DuplicateName: as `entry`.
            InvalidOption: a key that the factory doesn't take, a value of another type than its annotation, or
                a parameter that neither the table nor the context gives.
        """
        entry, options = self._resolve(kind, table)
        for value in options.values():
            if _is_component_table(value):
                self.check(kind, value, context)
        _check_options(kind, entry, options, frozenset(context))

    def build(self, kind: Kind, table: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> Any:
        """Make the component that a recipe's table describes.

        Args:
            kind: what the table describes.
            table: ``{"name": …, option: value, …}``. Nested tables with a ``name`` are built first, with the
                same context.
            context: what the caller knows (``num_classes``, ``embedding_dim``, …); the factory gets those that
                its signature asks for by name. Where both give a key, the table's value is used.

        Raises:
            As `check`; InvalidOption also if the factory itself refuses a value.
        """
        context = context or {}
        self.check(kind, table, context)
        entry, options = self._resolve(kind, table)
        given = {
            key: self.build(kind, value, context) if _is_component_table(value) else value
            for key, value in options.items()
        }
        parameters = _parameters(entry.component.factory)
        asked = {key: value for key, value in context.items() if key in parameters}
        try:
            return entry.component.factory(**(asked | given))
        except DmlError:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidOption(f"{_describe(kind, entry)}: {error}") from error

    def _resolve(self, kind: Kind, table: Mapping[str, Any]) -> tuple[Entry, dict[str, Any]]:
        name = table.get("name")
        if not isinstance(name, str):
            given = ", ".join(map(str, table)) or "nothing"
            raise InvalidOption(
                f"a {_SINGULAR[kind]} table needs a key 'name' with a string; got the keys: {given}. "
                f"known: {', '.join(self.entries(kind))}"
            )
        return self.entry(kind, name), {key: value for key, value in table.items() if key != "name"}

    def _collect(self, kind: Kind) -> list[Entry]:
        """Ask each plugin by itself, so that one that raises is set aside alone."""
        collected: list[Entry] = []
        caller = getattr(self.plugins.manager.hook, f"dml_{kind}")
        # pluggy calls what was registered last first; listings read better in the order of registration.
        for implementation in caller.get_hookimpls():
            provider = self.plugins.provider_of(implementation.plugin)
            try:
                returned = implementation.function()
                if not isinstance(returned, Iterable):
                    raise TypeError(f"dml_{kind} returned {returned!r}; expected an iterable of Component")
                brought = list(returned)
                if wrong := [item for item in brought if not isinstance(item, Component)]:
                    raise TypeError(f"dml_{kind} returned {wrong[0]!r}; expected an iterable of Component")
            except Exception as error:  # a stranger's code: set aside with its reason
                self.plugins.fail(
                    Failure(provider.entry_point, provider.distribution, provider.version, error)
                )
                continue
            collected += [Entry(component, provider) for component in brought]
        return collected


@cache
def registry() -> Registry:
    """The registry of this process's installed plugins."""
    return Registry(plugins())


# ------------------------------------------------------------------------------------ a factory's signature


def _is_component_table(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("name"), str)


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    }


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    """The factory's resolved annotations; none where they name something that can't be imported."""
    function = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def _describe(kind: Kind, entry: Entry) -> str:
    factory = getattr(entry.component.factory, "__qualname__", repr(entry.component.factory))
    return f"{_SINGULAR[kind]} {entry.component.name!r} ({factory} of {entry.provider})"


def _check_options(kind: Kind, entry: Entry, options: Mapping[str, Any], context: frozenset[str]) -> None:
    parameters = _parameters(entry.component.factory)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    named = {
        name: p
        for name, p in parameters.items()
        if p.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }
    valid = [name for name in named if name not in context]
    annotations = _annotations(entry.component.factory)
    for key, value in options.items():
        if key not in named:
            if takes_any:
                continue
            raise InvalidOption(
                f"{_describe(kind, entry)} has no option {key!r}{nearest(key, valid)} "
                f"options: {', '.join(valid) or 'none'}"
            )
        if key in annotations and not _is_component_table(value) and not _fits(value, annotations[key]):
            raise InvalidOption(
                f"{_describe(kind, entry)}: option {key!r} is {value!r}, of type {type(value).__name__}; "
                f"expected {_written(annotations[key])}"
            )
    missing = [
        name
        for name, p in named.items()
        if p.default is inspect.Parameter.empty and name not in options and name not in context
    ]
    if missing:
        raise InvalidOption(
            f"{_describe(kind, entry)} needs {', '.join(map(repr, missing))}, which neither the recipe's table "
            f"nor the run gives; the run gives: {', '.join(sorted(context)) or 'nothing'}"
        )


def _written(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _fits(value: object, annotation: Any) -> bool:
    """Whether a recipe's value fits an annotation. What isn't one of TOML's types is left to the factory."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation in (bool, str):
        return isinstance(value, annotation)
    if origin in (list, tuple, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        element = arguments[0] if arguments else Any
        return all(_fits(item, element) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    # TOML gives only the types above: for an annotation of any other class, the value is the factory's to judge.
    return True
