"""Load the installed plugins, and record the plugins that fail to load.

An installed distribution can name plugins in the entry-point group ``dml``. Plugins are loaded
independently: if a plugin can't be imported (or exits when imported), or if it implements an
unknown hook, a `Failure` will be recorded; other plugins will keep working. To make failures fatal,
set the environment variable ``DML_STRICT_PLUGINS=1``.
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
    """A loaded plugin and the distribution that contains the plugin."""

    entry_point: str  # "losses = dml_losses.plugin"
    distribution: str  # "dml-losses"
    version: str  # "0.1.0"
    plugin: object

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that failed to load, or failed in a hook, with the error."""

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
        points: the entry points to load, in the order of hook calls. Failures are listed in
            `failures`. Default: none.

    Raises:
        PluginLoadError: if a plugin fails and ``DML_STRICT_PLUGINS`` is set to a value other than
            ``0``.
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
            except BaseException as error:  # a plugin can raise anything, even SystemExit
                self.fail(Failure(written, distribution, version, error))

    def register(
        self,
        plugin: object,
        entry_point: str = "",
        distribution: str = "unpackaged",
        version: str = "0",
    ) -> Provider:
        """Add a plugin, packaged or not, and return its provider.

        Raises:
            DmlError: if the plugin implements an unknown hook; the message suggests the nearest
                known hook.
            pluggy.PluginValidationError: if an argument of a hook is not in the specification.
            ValueError: if the plugin is already registered.
        """
        entry_point = entry_point or getattr(plugin, "__name__", type(plugin).__name__)
        provider = Provider(entry_point, distribution, version, plugin)
        # By default, pluggy uses the module's name for a plugin, but distributions can have modules
        # with equal names.
        self.manager.register(plugin, name=f"{distribution}: {entry_point} ({id(plugin):x})")
        try:
            self._check_hooks(plugin)
        except DmlError:
            self.manager.unregister(plugin)
            raise
        self.providers.append(provider)
        return provider

    def fail(self, failure: Failure) -> None:
        """Record a failure.

        Raises:
            PluginLoadError: if ``DML_STRICT_PLUGINS`` is set; the failure isn't recorded then.
        """
        if os.environ.get(STRICT_VARIABLE, "0") not in ("", "0"):
            raise PluginLoadError(
                f"plugin failed to load ({STRICT_VARIABLE} is set): {failure}"
            ) from failure.error
        self.failures.append(failure)

    def collect(self, hook: str, kind: type[T], expected: str) -> list[tuple[T, Provider]]:
        """Call a hook in all plugins, and list the items that the plugins return.

        If a plugin's hook raises or returns a wrong type, record the failure and continue with the
        other plugins.

        Args:
            hook: the name of a hook that is called with no arguments and returns an iterable.
            kind: the type that the items must have.
            expected: describes the expected return value in error messages.

        Returns:
            The items and their providers.
        """
        collected: list[tuple[T, Provider]] = []
        # pluggy calls the last registered plugin first, but a listing should be in the order of
        # registration.
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
                self.fail(
                    Failure(provider.entry_point, provider.distribution, provider.version, error)
                )
            else:
                collected += [(item, provider) for item in items]
        return collected

    def describe_failures(self) -> str:
        """Return a line per plugin that failed to load, after a heading; empty if all plugins were
        loaded.
        """
        if not self.failures:
            return ""
        count = "1 plugin" if len(self.failures) == 1 else f"{len(self.failures)} plugins"
        return f"\n{count} failed to load (see 'dml plugins'):" + "".join(
            f"\n  {f}" for f in self.failures
        )

    def provider_of(self, plugin: object) -> Provider:
        """Return the provider of a registered plugin."""
        return next(provider for provider in self.providers if provider.plugin is plugin)

    def _check_hooks(self, plugin: object) -> None:
        specified = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
        for caller in self.manager.get_hookcallers(plugin) or ():
            if not caller.has_spec() and not all(
                impl.optionalhook for impl in caller.get_hookimpls()
            ):
                raise DmlError(
                    f"implements unknown hook {caller.name!r}{nearest(caller.name, specified)} "
                    f"hooks: {', '.join(specified)}"
                )


def _origin(point: EntryPoint) -> tuple[str, str]:
    """Return the distribution and version of an entry point, which are unknown if it was made by
    hand.
    """
    return (point.dist.name, point.dist.version) if point.dist else ("unknown distribution", "0")


@cache
def plugins() -> Plugins:
    """Return the plugins of this process. The first call loads all installed entry points of the
    group ``dml``.

    Raises:
        PluginLoadError: see `Plugins`.
    """
    points = entry_points(group=hookspecs.PROJECT)
    return Plugins(sorted(points, key=lambda point: (_origin(point)[0], point.name)))
