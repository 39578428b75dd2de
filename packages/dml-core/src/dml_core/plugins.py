"""Finding plugins, and surviving the broken ones.

Every installed distribution may name plugins under the entry-point group ``dml``. Each is loaded on its own:
one that can't be imported, or that implements a hook that doesn't exist, is set aside with the reason, and the
rest goes on working. Set the environment variable ``DML_STRICT_PLUGINS=1`` to make that fatal instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import pluggy

from dml_core import hookspecs
from dml_core.errors import DmlError, PluginLoadError, nearest

STRICT_VARIABLE = "DML_STRICT_PLUGINS"


@dataclass(frozen=True, slots=True)
class Provider:
    """A loaded plugin, and the distribution that it came from."""

    entry_point: str  # "losses = dml_losses.plugin"
    distribution: str  # "dml-losses"
    version: str  # "0.1.0"
    plugin: object

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that was set aside, and why."""

    entry_point: str
    distribution: str
    version: str
    error: Exception

    def __str__(self) -> str:
        return (
            f"{self.distribution} {self.version} (entry point '{self.entry_point}'): "
            f"{type(self.error).__name__}: {self.error}"
        )


class Plugins:
    """The plugins of a process: pluggy's manager, who provided what, and what failed to load.

    Args:
        points: the entry points to load, in the order in which their hooks are to be called. Every one is
            tried; one that fails is listed in `failures`.

    Raises:
        PluginLoadError: if a plugin fails and ``DML_STRICT_PLUGINS`` is set to anything but ``0`` or nothing.
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
            except Exception as error:  # whatever a stranger's module raises must not take the rest down
                self.fail(Failure(written, distribution, version, error))

    def register(
        self, plugin: object, entry_point: str = "", distribution: str = "unpackaged", version: str = "0"
    ) -> Provider:
        """Add one plugin, and say who provides it. A plugin that isn't packaged can be added by hand.

        Raises:
            DmlError: if it implements a hook that doesn't exist, naming the nearest that does.
            pluggy.PluginValidationError: if a hook asks for an argument that it isn't given.
            ValueError: if it is registered already.
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
        """Set a plugin aside, or stop where ``DML_STRICT_PLUGINS`` says so.

        Raises:
            PluginLoadError: in the latter case.
        """
        if os.environ.get(STRICT_VARIABLE, "0") not in ("", "0"):
            raise PluginLoadError(
                f"plugin failed to load ({STRICT_VARIABLE} is set): {failure}"
            ) from failure.error
        self.failures.append(failure)

    def provider_of(self, plugin: object) -> Provider:
        """Who provided this plugin, one that is registered."""
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
    """The distribution of an entry point and its version; editable and hand-made ones may have none."""
    return (point.dist.name, point.dist.version) if point.dist else ("unknown distribution", "0")


@cache
def plugins() -> Plugins:
    """This process's plugins: every installed entry point of the group ``dml``, loaded on the first call.

    Raises:
        PluginLoadError: as `Plugins`.
    """
    points = entry_points(group=hookspecs.PROJECT)
    return Plugins(sorted(points, key=lambda point: (_origin(point)[0], point.name)))
