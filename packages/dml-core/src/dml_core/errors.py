"""Errors that the user can fix; their messages say what came, what was expected and how to fix it.

The `dml` command prints a `DmlError` as one message, without a traceback, and exits with code 2. Any other
uncaught exception is a bug of the program and keeps its traceback.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path


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


def join_errors(errors: Sequence[DmlError]) -> DmlError:
    """Return one error for several mistakes, a line each; a single one as it is. An unknown name decides the type."""
    if len(errors) == 1:
        return errors[0]
    kind = UnknownName if any(isinstance(error, UnknownName) for error in errors) else InvalidOption
    return kind("\n".join(map(str, errors)))


def describe_error(error: BaseException) -> str:
    """Describe an unexpected error of other code in a line: type, message, and the file and line that raised it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    here = Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and Path(frame.filename).parent != here
    ]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text
