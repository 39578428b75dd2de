"""`Component`, which a plugin provides, and `Run`, which hooks receive."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from dml_core.errors import DmlError, describe_error
from dml_core.options import Option, options_of, takes_any_option

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(/[A-Za-z0-9]+)?")
_REFERENCE = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


class Component:
    """A component that a plugin provides: a name, a factory that makes the object, and a summary.

    Args:
        name: the name in recipes, in kebab-case (``"norm-softmax"``), or with a prefix
            (``"pml/ContrastiveLoss"``).
        factory: a class or function, called with the keys of the recipe's table, and with the
            values of the context (`dml_core.CONTEXT`) that are options of the factory. Give a
            reference, ``"my_package.losses:MyLoss"``, to import the factory only when the component
            is used, so that listings stay fast.
        summary: a single line to show in listings.
        source: the paper and its equations, or a different origin; empty by default.
        options: the keyword arguments of the factory, in the order to list. By default, they are
            read from the signature; a factory that forwards ``**options`` should declare the
            options.
        deferred: the options whose component the factory makes itself. If the recipe gives a
            component for such an option, the factory will receive a function ``() -> component``.

    Raises:
        ValueError: if the name isn't kebab-case, the summary is empty or longer than a line, or a
            reference isn't ``module:name``.
        TypeError: if the factory can't be called, or options are not declared and its signature
            can't be read.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any] | str,
        summary: str,
        source: str = "",
        options: Sequence[Option] | None = None,
        deferred: Sequence[str] = (),
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"component name {name!r} is not kebab-case; expected lower-case words joined by "
                "'-', for example 'ranked-list', or a class name after a prefix, as "
                "'pml/ContrastiveLoss'"
            )
        if isinstance(factory, str) and not _REFERENCE.fullmatch(factory):
            raise ValueError(
                f"component {name!r}: factory is {factory!r}; expected 'module:name', like "
                "'my_package.losses:MyLoss'"
            )
        if not isinstance(factory, str) and not callable(factory):
            raise TypeError(
                f"component {name!r}: factory is {factory!r}; expected a class or a function, or "
                "'module:name'"
            )
        if not summary.strip() or "\n" in summary:
            raise ValueError(
                f"component {name!r}: summary is {summary!r}; expected one line of text"
            )
        self.name: Final = name
        self.summary: Final = summary
        self.source: Final = source
        self.deferred: Final = tuple(deferred)
        self._factory: Final = factory
        self._options: Final = None if options is None else tuple(options)
        if not isinstance(
            factory, str
        ):  # read the options now, so that loading the plugin shows a mistake
            _ = self.options

    @cached_property
    def factory(self) -> Callable[..., Any]:
        """The factory; if a reference is given, it is imported when this property is first read.

        Raises:
            DmlError: if the reference can't be imported, or isn't callable.
        """
        if not isinstance(self._factory, str):
            return self._factory
        module, _, path = self._factory.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except DmlError:
            raise
        except Exception as error:  # a module may raise anything while it is imported
            raise DmlError(
                f"component {self.name!r}: can't import {self._factory}: {describe_error(error)}"
            ) from error
        if not callable(found):
            raise DmlError(
                f"component {self.name!r}: {self._factory} is {found!r}; expected a class or "
                "function"
            )
        factory: Callable[..., Any] = found
        return factory

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options that the factory takes by keyword."""
        try:
            return options_of(self.factory) if self._options is None else self._options
        except TypeError as error:
            raise TypeError(f"component {self.name!r}: {error}") from error

    @cached_property
    def takes_any_option(self) -> bool:
        """Whether the factory also takes keys that `options` doesn't list: it has undeclared
        ``**options``.
        """
        return self._options is None and takes_any_option(self.factory)

    def __repr__(self) -> str:
        return f"Component({self.name!r}, {self._factory!r}, {self.summary!r})"


@dataclass(frozen=True, slots=True)
class Run:
    """The training run that a hook receives.

    Args:
        directory: the run's folder.
        recipe: the resolved recipe, including all defaults.
        num_steps: the number of optimizer steps in the run.
        rank: the rank of this process; rank 0 writes files. Default: 0.
        world_size: the number of ranks that share the run. Default: 1.
    """

    directory: Path
    recipe: Mapping[str, Any]
    num_steps: int
    rank: int = 0
    world_size: int = 1
