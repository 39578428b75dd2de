"""The installed plugins, and the failures of those that can't be loaded.

Every installed distribution may name plugins in the entry-point group ``dml``. Each is loaded on its own: one that
can't be imported (or exits at its import), or that implements an unknown hook, is recorded as a `Failure`, and the
others keep working. The environment variable ``DML_STRICT_PLUGINS=1`` makes a failure fatal instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

import pluggy

from dml_core import hookspecs
from dml_core.errors import DmlError, PluginLoadError, describe_error, nearest

T = TypeVar("T")
STRICT_VARIABLE = "DML_STRICT_PLUGINS"


@dataclass(frozen=True, slots=True)
class Provider:
    """A loaded plugin and its distribution."""

    entry_point: str  # "losses = dml_losses.plugin"
    distribution: str  # "dml-losses"
    version: str  # "0.1.0"
    plugin: object

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that failed to load, or whose hook failed, and the error."""

    entry_point: str
    distribution: str
    version: str
    error: BaseException

    def __str__(self) -> str:
        return (
            f"{self.distribution} {self.version} (entry point '{self.entry_point}'): "
            f"{describe_error(self.error)}"
        )


class Plugins:
    """The plugins of a process: pluggy's manager, the providers, and the failures.

    Args:
        points: the entry points to load, in the order of their hooks' calls. Those that fail are listed in
            `failures`.

    Raises:
        PluginLoadError: if a plugin fails and ``DML_STRICT_PLUGINS`` is neither unset, empty nor ``0``.
    """

    def __init__(self, points: Iterable[EntryPoint] = ()) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.providers: list[Provider] = []
        self.failures: list[Failure] = []
        for point in points:
            written = f"{point.name} = {point.value}"
            distribution, version = _origin(point)
            try:
                self.register(point.load(), written, distribution, version)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise anything, also SystemExit
                self.fail(Failure(written, distribution, version, error))

    def register(
        self, plugin: object, entry_point: str = "", distribution: str = "unpackaged", version: str = "0"
    ) -> Provider:
        """Add a plugin, packaged or not, and return its provider.

        Raises:
            DmlError: if it implements an unknown hook; the message names the nearest known one.
            pluggy.PluginValidationError: if a hook has an argument that its specification lacks.
            ValueError: if it is already registered.
        """
        entry_point = entry_point or getattr(plugin, "__name__", type(plugin).__name__)
        provider = Provider(entry_point, distribution, version, plugin)
        # pluggy would name a plugin after its module, and two distributions may have modules of one name.
        self.manager.register(plugin, name=f"{distribution}: {entry_point} ({id(plugin):x})")
        try:
            self._refuse_unknown_hooks(plugin)
        except DmlError:
            self.manager.unregister(plugin)
            raise
        self.providers.append(provider)
        return provider

    def fail(self, failure: Failure) -> None:
        """Record a failure.

        Raises:
            PluginLoadError: instead, if ``DML_STRICT_PLUGINS`` is set.
        """
        if os.environ.get(STRICT_VARIABLE, "0") not in ("", "0"):
            raise PluginLoadError(
                f"plugin failed to load ({STRICT_VARIABLE} is set): {failure}"
            ) from failure.error
        self.failures.append(failure)

    def collect(self, hook: str, kind: type[T], expected: str) -> list[tuple[T, Provider]]:
        """Call every plugin's implementation of a hook on its own, and flatten what they return.

        A plugin whose hook raises, or returns something else, is recorded as a failure.

        Args:
            hook: the name of a hook without arguments that returns an iterable.
            kind: the type of its items.
            expected: what the hook should return, for messages.

        Returns:
            Each item and its provider.
        """
        collected: list[tuple[T, Provider]] = []
        # pluggy calls the last registered first; listings read better in the order of registration.
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            provider = self.provider_of(implementation.plugin)
            try:
                returned = implementation.function()
                if not isinstance(returned, Iterable):
                    raise TypeError(f"{hook} returned {returned!r}; expected {expected}")
                items = list(returned)
                if wrong := [item for item in items if not isinstance(item, kind)]:
                    raise TypeError(f"{hook} returned {wrong[0]!r}; expected {expected}")
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.fail(Failure(provider.entry_point, provider.distribution, provider.version, error))
            else:
                collected += [(item, provider) for item in items]
        return collected

    def describe_failures(self) -> str:
        """Return lines that name the plugins that failed; empty if none did."""
        if not self.failures:
            return ""
        count = "1 plugin" if len(self.failures) == 1 else f"{len(self.failures)} plugins"
        return f"\n{count} failed to load (see 'dml plugins'):" + "".join(f"\n  {f}" for f in self.failures)

    def provider_of(self, plugin: object) -> Provider:
        """Return the provider of a registered plugin."""
        return next(provider for provider in self.providers if provider.plugin is plugin)

    def _refuse_unknown_hooks(self, plugin: object) -> None:
        specified = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
        for caller in self.manager.get_hookcallers(plugin) or ():
            if not caller.has_spec() and not all(impl.optionalhook for impl in caller.get_hookimpls()):
                raise DmlError(
                    f"implements unknown hook {caller.name!r}{nearest(caller.name, specified)} "
                    f"hooks: {', '.join(specified)}"
                )


def _origin(point: EntryPoint) -> tuple[str, str]:
    """Return an entry point's distribution and version; one that was made by hand may have none."""
    return (point.dist.name, point.dist.version) if point.dist else ("unknown distribution", "0")


@cache
def plugins() -> Plugins:
    """Return this process's plugins: every installed entry point of the group ``dml``, loaded on the first call.

    Raises:
        PluginLoadError: as `Plugins`.
    """
    points = entry_points(group=hookspecs.PROJECT)
    return Plugins(sorted(points, key=lambda point: (_origin(point)[0], point.name)))
