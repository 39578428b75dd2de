"""Errors that the user can fix; their messages say what came, what was expected and how to fix it.

The `dml` command prints a `DmlError` as one message, without a traceback, and exits with code 2. Any other
uncaught exception is a bug of the program and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DmlError(Exception):
    """An error that the user can fix: the message says what came, what was expected, and how to fix it.

    Args:
        message: as above, in words that fit a Python caller and a user of the `dml` command.
        arguments: names of the Python arguments that fix it; the command appends the options of these names.
    """

    def __init__(self, message: str, *, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.arguments = arguments


class UnknownName(DmlError):
    """No plugin provides a component of this name."""


class DuplicateName(DmlError):
    """Two plugins provide components of one kind under one name."""


class InvalidOption(DmlError):
    """An unknown option, an option whose value the factory doesn't accept, or a missing required option."""


class PluginLoadError(DmlError):
    """A plugin failed to load while ``DML_STRICT_PLUGINS`` makes failures fatal."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to `name`: ``"; did you mean 'X'?"``, or ``";"`` if none is close."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ";"
