"""`Component`, what a plugin provides, and `Run`, what an observer is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dml_core.options import Option, options_of, takes_any_option

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(/[A-Za-z0-9]+)?")


class Component:
    """A named object that a plugin provides, with the factory that makes it.

    Args:
        name: the name in recipes, in kebab-case (``"norm-softmax"``). A family of another library's classes may
            have a prefix (``"pml/ContrastiveLoss"``).
        factory: called with the keys of the recipe's table and with the context (`dml_core.CONTEXT`) among its
            options. Usually a class.
        summary: one line for listings.
        source: the paper and its equations, or another origin; empty if there is nothing to cite.
        options: what the factory takes by keyword, in the order of listings; by default, the parameters of its
            signature. A factory that passes ``**options`` on declares them.

    Attributes:
        takes_any_option: whether the factory takes keys beyond `options`: its signature has ``**options``, and
            they aren't declared.

    Raises:
        ValueError: if the name isn't kebab-case, or the summary is empty or longer than a line.
        TypeError: if the factory can't be called, or its options are neither declared nor in a signature that
            Python can read.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        summary: str,
        source: str = "",
        options: Sequence[Option] | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"component name {name!r} is not kebab-case; expected lower-case words joined by '-', "
                "e.g. 'ranked-list', with at most one 'family/' before a class name"
            )
        if not callable(factory):
            raise TypeError(f"component {name!r}: factory is {factory!r}; expected a class or function")
        if not summary.strip() or "\n" in summary:
            raise ValueError(f"component {name!r}: summary is {summary!r}; expected one line of text")
        self.name: Final = name
        self.factory: Final = factory
        self.summary: Final = summary
        self.source: Final = source
        try:
            self.options: Final = options_of(factory) if options is None else tuple(options)
            self.takes_any_option: Final = options is None and takes_any_option(factory)
        except TypeError as error:
            raise TypeError(f"component {name!r}: {error}") from error

    def __repr__(self) -> str:
        return f"Component({self.name!r}, {self.factory!r}, {self.summary!r})"


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
