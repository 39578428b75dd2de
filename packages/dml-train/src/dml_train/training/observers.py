"""Plugins and loggers that watch a run. When an observer fails, it is disabled, and the run
continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from dml_core import DmlError, Plugins, RunLogger
from dml_core.components import Run
from dml_core.plugins import STRICT_VARIABLE
from dml_train.processes.stopping import Interrupted
from dml_train.progress import say


class Observers:
    """The plugins with hooks for runs, and the run's loggers.

    When a plugin or logger raises an error, it is named once, and will not be called again. A
    `DmlError` ends the run, since it is a message to the user. With ``DML_STRICT_PLUGINS=1``, any
    error ends the run.
    """

    def __init__(
        self, plugins: Plugins, loggers: Sequence[RunLogger], console: Console, run: Run
    ) -> None:
        self._plugins, self._loggers, self._console, self._run = (
            plugins,
            list(loggers),
            console,
            run,
        )
        self._set_aside: set[int] = set()

    def close(self) -> None:
        """Close the loggers."""
        for logger in self._loggers:
            self._guard(logger, f"the logger {type(logger).__name__}", logger.close)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send values to all loggers."""
        for logger in self._loggers:
            self._guard(logger, f"the logger {type(logger).__name__}", logger.log, step, values)

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook in all plugins that have it."""
        arguments["run"] = self._run
        # Like pluggy, call the last registered first, and pass only the arguments that the hook
        # names.
        for implementation in reversed(getattr(self._plugins.manager.hook, hook).get_hookimpls()):
            given = {name: arguments[name] for name in implementation.argnames}
            who = f"the plugin {self._plugins.provider_of(implementation.plugin)} in {hook}"
            self._guard(implementation.plugin, who, implementation.function, **given)

    def _guard(
        self,
        observer: object,
        who: str,
        call: Callable[..., object],
        *positional: Any,
        **named: Any,
    ) -> None:
        """Call an observer unless it is disabled; disable it if it fails.

        Raise a `DmlError` if the observer raises it, or, with ``DML_STRICT_PLUGINS``, any other
        error.
        """
        if id(observer) in self._set_aside:
            return
        try:
            call(*positional, **named)
        except (DmlError, KeyboardInterrupt, Interrupted):
            raise
        except BaseException as error:  # third-party code may raise anything
            what = f"{who} failed: {type(error).__name__}: {error}"
            if os.environ.get(STRICT_VARIABLE, "0") not in ("", "0"):
                raise DmlError(f"{what} ({STRICT_VARIABLE} is set)") from error
            self._set_aside.add(id(observer))
            say(self._console, f"{what}; it is not called again, and the run continues")
