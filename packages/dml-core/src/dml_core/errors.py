"""Errors that a user can fix: the message says what is wrong, what was expected and how to fix the
problem.

The `dml` command prints the message of a `DmlError` (not the traceback) and will exit with code 2.
Any other uncaught exception is a bug in the program, so the traceback is printed.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path


class DmlError(Exception):
    """An error that a user can fix; see the module's docstring for the message.

    Args:
        message: must make sense both to a Python caller and to a user of the `dml` command.
        arguments: the Python arguments to change; the `dml` command appends the options of these
            names. Default: none.
    """

    def __init__(self, message: str, *, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.arguments = arguments


class UnknownName(DmlError):
    """An error for a name that is not provided by a plugin."""


class DuplicateName(DmlError):
    """An error for a name that is provided more than once for a kind of component."""


class InvalidOption(DmlError):
    """An error for an unknown option, a missing option, or a value that the factory doesn't
    accept.
    """


class PluginLoadError(DmlError):
    """An error for a plugin that fails to load when ``DML_STRICT_PLUGINS`` is set."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to `name`: ``"; did you mean 'X'?"``, or ``";"`` if none is
    close.
    """
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ";"


def join_errors(errors: Sequence[DmlError]) -> DmlError:
    """Join errors, one per line, into an `UnknownName` if any is one, else an `InvalidOption`; keep
    a single error.
    """
    if len(errors) == 1:
        return errors[0]
    kind = UnknownName if any(isinstance(error, UnknownName) for error in errors) else InvalidOption
    return kind("\n".join(map(str, errors)))


def describe_error(error: BaseException) -> str:
    """Describe an unexpected exception in a single line: type, message, and the file and line that
    raised it.
    """
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
