"""`Component`, what a plugin provides, and `Run`, what an observer is shown."""

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
    """A named object that a plugin provides, with the factory that makes it.

    Args:
        name: the name in recipes, in kebab-case (``"norm-softmax"``). A family of another library's classes may
            have a prefix (``"pml/ContrastiveLoss"``).
        factory: called with the keys of the recipe's table and with the context (`dml_core.CONTEXT`) among its
            options. Usually a class; or a reference to one, ``"my_package.losses:MyLoss"``, which is imported when the
            component is first used, so that listings needn't import what computes.
        summary: one line for listings.
        source: the paper and its equations, or another origin; empty if there is nothing to cite.
        options: what the factory takes by keyword, in the order of listings; by default, the parameters of its
            signature. A factory that passes ``**options`` on declares them.
        deferred: the options whose component the factory makes itself. Where a recipe's table gives a component for
            one, the factory receives a function without arguments that makes it, and not the component.

    Raises:
        ValueError: if the name isn't kebab-case, the summary is empty or longer than a line, or a reference isn't
            ``module:name``.
        TypeError: if the factory can't be called, or its options are neither declared nor in a signature that
            Python can read.
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
                f"component name {name!r} is not kebab-case; expected lower-case words joined by '-', "
                "e.g. 'ranked-list', with at most one 'family/' before a class name"
            )
        if isinstance(factory, str) and not _REFERENCE.fullmatch(factory):
            raise ValueError(
                f"component {name!r}: factory is {factory!r}; expected 'module:name', as 'my_package.losses:MyLoss'"
            )
        if not isinstance(factory, str) and not callable(factory):
            raise TypeError(
                f"component {name!r}: factory is {factory!r}; expected a class, a function, or 'module:name'"
            )
        if not summary.strip() or "\n" in summary:
            raise ValueError(f"component {name!r}: summary is {summary!r}; expected one line of text")
        self.name: Final = name
        self.summary: Final = summary
        self.source: Final = source
        self.deferred: Final = tuple(deferred)
        self._factory: Final = factory
        self._options: Final = None if options is None else tuple(options)
        if not isinstance(factory, str):  # a mistake is found where the plugin is loaded
            _ = self.options

    @cached_property
    def factory(self) -> Callable[..., Any]:
        """The factory, imported at the first use if the component has a reference.

        Raises:
            DmlError: if it can't be imported, or called.
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
                f"component {self.name!r}: {self._factory} is {found!r}; expected a class or function"
            )
        factory: Callable[..., Any] = found
        return factory

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What the factory takes by keyword."""
        try:
            return options_of(self.factory) if self._options is None else self._options
        except TypeError as error:
            raise TypeError(f"component {self.name!r}: {error}") from error

    @cached_property
    def takes_any_option(self) -> bool:
        """Whether the factory takes keys beyond `options`: its signature has ``**options``, undeclared."""
        return self._options is None and takes_any_option(self.factory)

    def __repr__(self) -> str:
        return f"Component({self.name!r}, {self._factory!r}, {self.summary!r})"


@dataclass(frozen=True, slots=True)
class Run:
    """The run, as hooks receive it.

    Args:
        directory: the run's folder.
        recipe: the resolved recipe, with every default.
        num_steps: optimizer steps of the whole run.
        rank: this process's rank; rank 0 writes.
        world_size: the number of ranks that share the run.
    """

    directory: Path
    recipe: Mapping[str, Any]
    num_steps: int
    rank: int = 0
    world_size: int = 1
