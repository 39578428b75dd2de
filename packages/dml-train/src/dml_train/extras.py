"""Optional packages: a missing one is an error that names the extra of dml-train with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dml_core import DmlError


class MissingExtra(DmlError):
    """A package that only some uses of dml-train need isn't installed."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Import packages of an extra.

    Args:
        name: of the extra, ``"report"``.
        what: needs them, for the message: ``"a report"``.

    Raises:
        MissingExtra: if an import fails.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(
            f"{what} needs {error.name or 'a package'} ({error}); install it: pip install 'dml-train[{name}]'"
        ) from error
